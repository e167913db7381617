// The kernels of norms, compiled for their GPU: no register leaves the register file.
#include "cuda/device.h"
#include "plan/norm.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::NormForm;
using config::NormOperand;
using plan::NormBackwardProblem;
using plan::NormProblem;

constexpr std::array kInputs{DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr NormOperand kNone = NormOperand::kNone, kSame = NormOperand::kInputType,
                      kFloat = NormOperand::kFloat32;

// RMSNorm and LayerNorm as models have them, without anything, and with everything.
constexpr std::array kForms{
    NormForm{.weight = kSame},
    NormForm{.weight = kFloat},
    NormForm{.kind = NormKind::kLayer, .weight = kSame, .bias = kSame},
    NormForm{.kind = NormKind::kLayer, .scale = kSame, .shift = kSame},
    NormForm{.kind = NormKind::kLayer,
             .weight = kFloat,
             .bias = kFloat,
             .scale = kFloat,
             .shift = kFloat},
};

using test::Compiler;

class NvrtcNormTest : public test::NvrtcTest<testing::TestWithParam<NormForm>> {
 protected:
  // Returns the form; operands in FP32 are of x's type if the problem is in FP32, too.
  static NormForm form_of(DType in) {
    NormForm form = GetParam();
    if (in != DType::kFloat32) return form;
    for (NormOperand* operand : {&form.weight, &form.bias, &form.scale, &form.shift}) {
      if (*operand == kFloat) *operand = kSame;
    }
    return form;
  }
};

TEST_P(NvrtcNormTest, ForwardCompilesWithoutSpills) {
  Compiler compiler;
  for (const DType in : kInputs) {
    for (const Granularity granularity : {Granularity::kBlock1x128, Granularity::kChannel}) {
      for (const bool residual : {false, true}) {
        for (const std::int64_t cols : {512, 4096, 7168, 28'672, 100'000}) {
          // Two types of 16 bits differ in a conversion.
          const bool is_one_of_few = granularity == Granularity::kBlock1x128 && cols == 4096;
          if (in == DType::kFloat16 && !is_one_of_few) continue;
          NormProblem problem{.rows = 256,
                              .cols = cols,
                              .form = form_of(in),
                              .adds_residual = residual,
                              .format = {.in = in, .granularity = granularity}};
          // A rule that divides, whose casters are larger.
          if (residual) problem.format.rule = config::kDeepSeekRule;
          compiler.expect_sound(plan_norm(problem, plan::kHopper).kernels);
          problem.output = config::NormOutput::kNothing;
          compiler.expect_sound(plan_norm(problem, plan::kHopper).kernels);
          if (granularity == Granularity::kChannel) {  // no matter to numbers
            problem.output = config::NormOutput::kNumbers;
            compiler.expect_sound(plan_norm(problem, plan::kHopper).kernels);
          }
          if (cols != 512) continue;
          problem.output = config::NormOutput::kCodes;
          problem.inputs_are_aligned = problem.codes_are_aligned = false;
          compiler.expect_sound(plan_norm(problem, plan::kHopper).kernels);
        }
      }
    }
  }
}

// Tiles: of both targets, and of scales that every kind of kernel finds. All sources are compiled
// with every target in cast_kernels_test.cpp.
TEST_P(NvrtcNormTest, CastsOfWhatIsNormedCompileWithoutSpills) {
  Compiler compiler;
  for (const DType in : kInputs) {
    for (const auto granularity :
         {Granularity::kTensor, Granularity::kBlock1x128, Granularity::kBlock128x128}) {
      for (const bool aligned : {false, true}) {
        if (aligned && in == DType::kFloat16) continue;  // as BF16 but for a conversion
        const plan::CastProblem problem{
            .rows = 256,
            .cols = 7168,
            .format = {.in = in, .granularity = granularity},
            .source = {.kind = config::SourceKind::kNormed, .norm = form_of(in)},
            .to_transposed = true,
            .x_is_aligned = aligned,
            .codes_are_aligned = aligned};
        compiler.expect_sound(plan_cast(problem, plan::kHopper).kernels);
      }
    }
  }
}

TEST_P(NvrtcNormTest, BackwardCompilesWithoutSpills) {
  Compiler compiler;
  for (const DType in : kInputs) {
    for (const bool adds_gradient : {false, true}) {
      for (const std::int64_t cols : {64, 4096, 7168, 28'672}) {
        if (in == DType::kFloat16 && cols != 4096) continue;
        const NormForm form = form_of(in);
        NormBackwardProblem problem{.rows = 256,
                                    .cols = cols,
                                    .form = form,
                                    .in = in,
                                    .adds_gradient = adds_gradient,
                                    .of_weight = form.weight != kNone,
                                    .of_bias = form.bias != kNone,
                                    .of_scale = form.scale != kNone,
                                    .of_shift = form.shift != kNone};
        compiler.expect_sound(plan_norm_backward(problem, plan::kHopper).kernels);
        problem.is_aligned = false;
        compiler.expect_sound(plan_norm_backward(problem, plan::kHopper).kernels);
      }
    }
  }
}

using Info = testing::TestParamInfo<NormForm>;

std::string name_of(const Info& info) {
  constexpr std::array kNames{"Rms", "RmsFloatWeight", "Layer", "Adaptive", "Everything"};
  return kNames[info.index];
}

INSTANTIATE_TEST_SUITE_P(Norms, NvrtcNormTest, testing::ValuesIn(kForms), name_of);

}  // namespace
}  // namespace octofold::cuda
