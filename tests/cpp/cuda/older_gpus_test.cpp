// Casts, norms, rotary embeddings and routing compiled for GPUs before Hopper, each for its own
// architecture: no register leaves the register file, and shared memory is within what a block has
// there. Of each kind of kernel a few; tests of Hopper's have them all.
#include "plan/cast.h"
#include "plan/norm.h"
#include "plan/routing.h"
#include "plan/small.h"
#include "support/granularities.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

class OlderGpuTest : public test::NvrtcGpuTest {
 protected:
  // Returns such a GPU as it describes itself, rather than as a target of a later one.
  static plan::Gpu gpu_of(int compute_capability) {
    plan::Gpu gpu = plan::as_target(plan::kHopper, compute_capability);
    gpu.is_translated = false;
    return gpu;
  }

  plan::Gpu gpu_ = gpu_of(GetParam());
  test::Compiler compiler_{gpu_};
};

TEST_P(OlderGpuTest, CastsCompileWithoutSpills) {
  for (const Granularity granularity : test::kGranularities) {
    for (const bool both : {false, true}) {
      const plan::CastProblem problem{
          .rows = 256,
          .cols = 512,
          .format = {.in = both ? DType::kBFloat16 : DType::kFloat32, .granularity = granularity},
          .to_transposed = both};
      compiler_.expect_sound(plan_cast(problem, gpu_).kernels);
    }
  }
  for (const config::SourceKind kind :
       {config::SourceKind::kActivation, config::SourceKind::kActivationGradient,
        config::SourceKind::kNormed}) {
    const plan::CastProblem worked_out{.rows = 256,
                                       .cols = 512,
                                       .format = {.in = DType::kBFloat16},
                                       .source = {.kind = kind},
                                       .to_transposed = kind != config::SourceKind::kActivation};
    compiler_.expect_sound(plan_cast(worked_out, gpu_).kernels);
  }
}

TEST_P(OlderGpuTest, ConversionsCompileWithoutSpills) {
  for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
    for (const DType other : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
      for (const bool encodes : {false, true}) {
        const plan::ConvertProblem problem{
            .rows = 64, .cols = 512, .in = encodes ? other : fp8, .out = encodes ? fp8 : other};
        compiler_.expect_sound(plan_convert(problem, gpu_).kernels);
      }
    }
  }
}

TEST_P(OlderGpuTest, TransposesCompileWithoutSpills) {
  for (const bool aligned : {true, false}) {
    compiler_.expect_sound(
        plan_transpose({.rows = 256, .cols = 512, .x_is_aligned = aligned}, gpu_).kernels);
  }
}

TEST_P(OlderGpuTest, NormsCompileWithoutSpills) {
  const config::NormForm form{.weight = config::NormOperand::kInputType};
  const plan::NormProblem forward{
      .rows = 64, .cols = 4096, .form = form, .format = {.in = DType::kBFloat16}};
  compiler_.expect_sound(plan_norm(forward, gpu_).kernels);
  const plan::NormBackwardProblem backward{
      .rows = 64, .cols = 4096, .form = form, .in = DType::kBFloat16};
  compiler_.expect_sound(plan_norm_backward(backward, gpu_).kernels);
}

TEST_P(OlderGpuTest, RotaryEmbeddingsCompileWithoutSpills) {
  plan::RotaryProblem problem{.tokens = 64, .heads = 32, .head_size = 128};
  for (const DType type : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    for (const bool aligned : {false, true}) {
      problem.type = type;
      problem.is_aligned = aligned;
      compiler_.expect_sound(plan_rotary(problem, gpu_).kernels);
    }
  }
}

TEST_P(OlderGpuTest, RoutingCompilesWithoutSpills) {
  plan::TopKProblem problem{.tokens = 100, .experts = 256, .slots = 8, .in = DType::kBFloat16};
  compiler_.expect_sound(plan_top_k(problem, gpu_).kernels);
  problem.scoring = Scoring::kSigmoid;
  problem.groups = 8;
  compiler_.expect_sound(plan_top_k(problem, gpu_).kernels);
  compiler_.expect_sound(plan_sort({.slots = 1000, .experts = 256}, gpu_).kernels);
  compiler_.expect_sound(plan_combine({.tokens = 8, .cols = 4096}, gpu_).kernels);
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, OlderGpuTest, testing::Values(75, 80, 86, 89), test::sm_name);

}  // namespace
}  // namespace octofold::cuda
