// The kernels of casts of stacks, compiled for their GPU: no register leaves the register file.
#include <array>
#include <gtest/gtest.h>

#include "plan/cast.h"
#include "support/granularities.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"

namespace octofold::cuda {
namespace {

using plan::CastProblem;
using enum Granularity;

constexpr std::array kInputs{DType::kFloat32, DType::kFloat16, DType::kBFloat16};

class NvrtcStackedCastTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
  }
  void expect_sound(const CastProblem& problem) {
    compiler_.expect_sound(plan::plan_cast(problem, plan::kHopper).kernels);
  }

 private:
  test::Compiler compiler_;
};

CastProblem problem_of(DType in, const config::CastRule& rule, Granularity granularity,
                       bool to_rows = true, bool to_transposed = true) {
  return {.rows = 4 * 1000,
          .cols = 1024,
          .format = {.in = in, .granularity = granularity, .rule = rule},
          .to_rows = to_rows,
          .to_transposed = to_transposed,
          .matrices = 4};
}

TEST_F(NvrtcStackedCastTest, BlocksCompileWithoutSpills) {
  for (const DType in : kInputs) {
    for (const config::CastRule& rule :
         {config::kDeepGemmRule, config::kVllmRule, config::kDeepSeekRule}) {
      for (const Granularity granularity : {kBlock1x128, kBlock128x128}) {
        expect_sound(problem_of(in, rule, granularity));
        expect_sound(problem_of(in, rule, granularity, false));
      }
      expect_sound(problem_of(in, rule, kBlock128x128, true, false));
      CastProblem mixed = problem_of(in, rule, kBlock1x128);
      mixed.transposed_by_squares = true;
      expect_sound(mixed);
    }
  }
}

TEST_F(NvrtcStackedCastTest, StepsCompileWithoutSpills) {
  for (const DType in : kInputs) {
    for (const Granularity granularity : {kTensor, kChannel}) {
      for (const bool to_rows : {false, true}) {
        expect_sound(problem_of(in, config::kTorchAoRule, granularity, to_rows));
        expect_sound(problem_of(in, config::kVllmRule, granularity, to_rows));
      }
    }
    expect_sound(problem_of(in, config::kTransformerEngineRule, kTensor, true, false));
    CastProblem mixed = problem_of(in, config::kTorchAoRule, kBlock1x128);
    mixed.transposed_by_channel = true;
    expect_sound(mixed);
  }
}

TEST_F(NvrtcStackedCastTest, OtherFormsCompileWithoutSpills) {
  for (const DType in : kInputs) {
    for (const Granularity granularity : test::kGranularities) {
      CastProblem given = problem_of(in, config::kVllmRule, granularity);
      given.scales_given = true;
      expect_sound(given);
    }
    for (const Granularity granularity : {kBlock1x128, kBlock128x128}) {
      CastProblem two_level = problem_of(in, config::kTorchAoRule, granularity);
      two_level.two_level = true;
      expect_sound(two_level);
      CastProblem unaligned = problem_of(in, config::kVllmRule, granularity);
      unaligned.x_is_aligned = unaligned.codes_are_aligned = false;
      expect_sound(unaligned);
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
