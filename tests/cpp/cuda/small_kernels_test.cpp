// The kernels of routing and of the dot product, compiled: no register leaves the register file.
#include "plan/routing.h"
#include "plan/small.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using DotKernelsTest = test::NvrtcGpuTest;

constexpr std::array kWide{DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr std::array kBools{false, true};

class NvrtcRoutingTest : public test::NvrtcTest<> {
 protected:
  test::Compiler compiler_;
};

TEST_F(NvrtcRoutingTest, TopKCompilesWithoutSpills) {
  for (const DType in : kWide) {
    for (const std::int64_t experts : {8, 64, 128, 256, 384, 1024}) {
      plan::TopKProblem problem{.tokens = 100, .experts = experts, .slots = 8, .in = in};
      compiler_.expect_sound(plan_top_k(problem, plan::kHopper).kernels);
      problem.scoring = Scoring::kSigmoid;
      for (const bool biased : kBools) {
        for (const std::int64_t groups : {1, 8}) {
          problem.biased = biased;
          problem.groups = groups;
          compiler_.expect_sound(plan_top_k(problem, plan::kHopper).kernels);
        }
      }
    }
  }
}

TEST_F(NvrtcRoutingTest, TopKGradientCompilesWithoutSpills) {
  for (const DType in : kWide) {
    for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid}) {
      for (const std::int64_t experts : {8, 64, 128, 256, 384, 1024}) {
        const plan::TopKGradientProblem problem{
            .tokens = 100, .experts = experts, .slots = 8, .in = in, .scoring = scoring};
        compiler_.expect_sound(plan_top_k_gradient(problem, plan::kHopper).kernels);
      }
    }
  }
}

TEST_F(NvrtcRoutingTest, SortCompilesWithoutSpills) {
  for (const std::int64_t slots : {100, 100'000}) {
    for (const std::int64_t experts : {8, 512, 1024, 2048}) {
      compiler_.expect_sound(plan_sort({slots, experts}, plan::kHopper).kernels);
    }
  }
}

TEST_F(NvrtcRoutingTest, ChecksCompileWithoutSpills) {
  for (const bool ascends : kBools) {
    compiler_.expect_sound(plan_group_check({.ascends = ascends}, plan::kHopper).kernels);
  }
}

TEST_F(NvrtcRoutingTest, CombineCompilesWithoutSpills) {
  for (const DType in : kWide) {
    for (const DType out : kWide) {
      for (const bool aligned : kBools) {
        const bool adds = in == out;
        for (const std::int64_t cols : {64, 7168}) {
          plan::CombineProblem problem{.tokens = 100,
                                       .cols = cols,
                                       .in = in,
                                       .out = out,
                                       .adds = adds,
                                       .is_aligned = aligned};
          compiler_.expect_sound(plan_combine(problem, plan::kHopper).kernels);
          problem.weighted = false;
          problem.adds = !adds;
          compiler_.expect_sound(plan_combine(problem, plan::kHopper).kernels);
          compiler_.expect_sound(
              plan_combine_gradient(
                  {.tokens = 100, .cols = cols, .gradient = out, .in = in, .is_aligned = aligned},
                  plan::kHopper)
                  .kernels);
        }
      }
    }
  }
}

TEST_F(NvrtcRoutingTest, ActivationDotsCompileWithoutSpills) {
  for (const DType in : kWide) {
    for (const bool aligned : kBools) {
      for (const Activation activation : {Activation::kSwiGlu, Activation::kSwiGluOss,
                                          Activation::kGeGluErf, Activation::kReluSquared}) {
        const plan::ActivationDotsProblem problem{
            .slots = 100, .cols = 768, .in = in, .activation = activation, .is_aligned = aligned};
        compiler_.expect_sound(plan_activation_dots(problem, plan::kHopper).kernels);
      }
    }
  }
}

TEST_P(DotKernelsTest, CompileWithoutSpills) {
  const plan::Gpu gpu = plan::gpu_of(GetParam(), 100);
  test::Compiler compiler(gpu);
  for (const DType a : {DType::kE4M3, DType::kE5M2}) {
    for (const DType b : {DType::kE4M3, DType::kBFloat16, DType::kFloat32}) {
      const plan::DotProblem problem{
          .size = 100'000, .a = a, .b = b, .a_blocks = true, .b_blocks = is_fp8(b)};
      compiler.expect_sound(plan_dot(problem, gpu).kernels);
    }
  }
  compiler.expect_sound(
      plan_dot({.size = 100, .a = DType::kFloat16, .is_aligned = false}, gpu).kernels);
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, DotKernelsTest, testing::Values(75, 80, 86, 89, 90, 120),
                         test::sm_name);

}  // namespace
}  // namespace octofold::cuda
