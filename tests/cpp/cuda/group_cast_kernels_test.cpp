// The kernels of casts in groups, of gathered rows and of stacks, compiled for their GPU: no
// register leaves the register file, and no exchange between lanes has to collect them first.
#include "cuda/device.h"
#include "plan/cast.h"
#include "support/granularities.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::CastSource;
using config::SourceKind;
using plan::CastProblem;
using enum Granularity;

// FP16 differs from BF16 in a conversion, so it takes its place in what is not aligned.
constexpr std::array kInputs{DType::kFloat32, DType::kBFloat16};
constexpr DType unaligned(DType in) { return in == DType::kBFloat16 ? DType::kFloat16 : in; }
constexpr CastSource kGathered{.kind = SourceKind::kGathered};
constexpr CastSource kMultiplied{.kind = SourceKind::kGathered, .factors = true};
constexpr CastSource kTransposeMultiplied{.kind = SourceKind::kGathered,
                                          .transposed_factors = true};

class CastKernelsTest : public test::NvrtcTest<> {
 protected:
  void expect_sound(const CastProblem& problem, int spills = 0) {
    compiler_.expect_sound(problem, spills);
  }

 private:
  test::Compiler compiler_;
};
using NvrtcGroupCastTest = CastKernelsTest;
using NvrtcStackedCastTest = CastKernelsTest;

CastProblem problem_of(DType in, const config::CastRule& rule, Granularity granularity,
                       const CastSource& source, bool to_rows = true, bool aligned = true) {
  return {.rows = 1000,
          .cols = 1024,
          .format = {.in = in, .granularity = granularity, .rule = rule},
          .source = source,
          .to_rows = to_rows,
          .to_transposed = true,
          .groups = 8,
          .x_is_aligned = aligned,
          .codes_are_aligned = aligned};
}

CastProblem beside(Granularity transposed, CastProblem problem) {
  problem.transposed_by_channel = transposed == kChannel;
  problem.transposed_by_squares = transposed == kBlock128x128;
  return problem;
}

TEST_F(NvrtcGroupCastTest, TransposesInGroupsCompileWithoutSpills) {
  for (const DType in : kInputs) {
    for (const config::CastRule& rule : {config::kDeepSeekRule, config::kDeepGemmRule}) {
      expect_sound(problem_of(in, rule, kBlock1x128, {}));
    }
    expect_sound(problem_of(in, config::kTorchAoRule, kBlock128x128, {}, false));
    expect_sound(beside(kChannel, problem_of(in, config::kTorchAoRule, kBlock1x128, {})));
    expect_sound(beside(kBlock128x128, problem_of(in, config::kDeepSeekRule, kBlock1x128, {})));
  }
  for (const Granularity granularity : {kTensor, kChannel}) {
    expect_sound(problem_of(DType::kBFloat16, config::kDeepGemmRule, granularity, {}));
  }
  expect_sound(problem_of(DType::kFloat16, config::kDeepSeekRule, kBlock1x128, {}, true, false));
  CastProblem given = problem_of(DType::kBFloat16, config::kDeepGemmRule, kBlock1x128, {}, false);
  given.scales_given = true;
  expect_sound(given);
  CastProblem two_level = problem_of(DType::kBFloat16, config::kTorchAoRule, kBlock1x128, {});
  two_level.two_level = true;
  expect_sound(two_level);
}

TEST_F(NvrtcGroupCastTest, ActivationsInGroupsCompileWithoutSpills) {
  for (const auto kind : {SourceKind::kActivation, SourceKind::kActivationGradient}) {
    const auto swiglu = CastSource::of(kind, Activation::kSwiGlu, GateLayout::kHalves);
    for (const DType in : kInputs) {
      expect_sound(problem_of(in, config::kDeepSeekRule, kBlock1x128, swiglu));
    }
    expect_sound(
        beside(kChannel, problem_of(DType::kBFloat16, config::kTorchAoRule, kBlock1x128, swiglu)));
    expect_sound(beside(kBlock128x128,
                        problem_of(DType::kBFloat16, config::kDeepGemmRule, kBlock1x128, swiglu)));
    expect_sound(problem_of(DType::kBFloat16, config::kDeepGemmRule, kBlock1x128,
                            swiglu.of_codes(DType::kE4M3, kBlock1x128)));
    expect_sound(problem_of(DType::kFloat16, config::kDeepGemmRule, kBlock1x128,
                            CastSource::of(kind, Activation::kGeGluErf, GateLayout::kInterleaved),
                            true, false));
  }
}

TEST_F(NvrtcGroupCastTest, FactorsOfTheTransposeCompileWithoutSpills) {
  for (const DType in : kInputs) {
    for (const config::CastRule& rule : {config::kDeepSeekRule, config::kTorchAoRule}) {
      for (const CastProblem& problem :
           {problem_of(in, rule, kBlock1x128, kTransposeMultiplied),
            problem_of(unaligned(in), rule, kBlock1x128, kTransposeMultiplied, true, false)}) {
        expect_sound(problem);
        expect_sound(beside(kChannel, problem));
      }
    }
  }
}

TEST_F(NvrtcGroupCastTest, GatheredRowsCompileWithoutSpills) {
  for (const CastSource& source : {kGathered, kMultiplied}) {
    for (const DType in : kInputs) {
      for (const config::CastRule& rule : {config::kDeepSeekRule, config::kCompressedTensorsRule}) {
        CastProblem both = problem_of(in, rule, kBlock1x128, source);
        expect_sound(both);
        both.groups = 0;
        expect_sound(both);
        CastProblem rows = both;
        rows.to_transposed = false;
        for (const Granularity granularity : test::kGranularities) {
          rows.format.granularity = granularity;
          for (const std::int64_t cols : {512, 7168, 28'672, 100'000}) {
            rows.cols = cols;
            expect_sound(rows);
            if (granularity != kChannel) break;
          }
        }
      }
      expect_sound(beside(kChannel, problem_of(in, config::kTorchAoRule, kBlock1x128, source)));
      expect_sound(
          beside(kBlock128x128, problem_of(in, config::kDeepSeekRule, kBlock1x128, source)));
      expect_sound(problem_of(in, config::kDeepSeekRule, kBlock128x128, source, false));
      expect_sound(
          problem_of(unaligned(in), config::kDeepSeekRule, kBlock1x128, source, true, false));
    }
    expect_sound(problem_of(DType::kBFloat16, config::kDeepSeekRule, kTensor, source));
    expect_sound(problem_of(DType::kBFloat16, config::kDeepSeekRule, kChannel, source));
    CastProblem rows =
        problem_of(DType::kFloat16, config::kDeepSeekRule, kChannel, source, true, false);
    rows.groups = 0;
    rows.to_transposed = false;
    expect_sound(rows);
  }
}

constexpr CastSource kNormed{.kind = SourceKind::kNormed,
                             .norm = {.kind = NormKind::kLayer,
                                      .weight = config::NormOperand::kInputType,
                                      .bias = config::NormOperand::kInputType,
                                      .scale = config::NormOperand::kInputType,
                                      .shift = config::NormOperand::kInputType}};

// Norms in groups.
TEST_F(NvrtcGroupCastTest, NormsInGroupsCompileWithoutSpills) {
  for (const DType in : kInputs) {
    expect_sound(problem_of(in, config::kDeepSeekRule, kBlock1x128, kNormed));
    expect_sound(problem_of(in, config::kDeepGemmRule, kBlock128x128, kNormed, false));
  }
  const auto of = [](Granularity granularity) {
    return problem_of(DType::kBFloat16, config::kTorchAoRule, granularity, kNormed);
  };
  for (const Granularity granularity : {kTensor, kChannel}) expect_sound(of(granularity));
  expect_sound(beside(kChannel, of(kBlock1x128)));
  expect_sound(beside(kBlock128x128, of(kBlock1x128)));
  expect_sound(
      problem_of(DType::kFloat16, config::kTorchAoRule, kBlock1x128, kNormed, true, false));
}

// Options that any source may have: columns, given scales, scales of two levels. Some of these
// pairs were refused until one cast() took them all, and no one has tuned them: the worst, a norm
// with columns, spills 180 bytes.
constexpr int kUntunedSpills = 192;
TEST_F(NvrtcGroupCastTest, EverySourceTakesTheOptionsOfACast) {
  const CastSource swiglu =
      CastSource::of(SourceKind::kActivation, Activation::kSwiGlu, GateLayout::kHalves);
  const CastSource gradient =
      CastSource::of(SourceKind::kActivationGradient, Activation::kSwiGlu, GateLayout::kHalves);
  for (const CastSource& source : {swiglu, gradient, kNormed, kGathered, kMultiplied}) {
    for (const DType in : kInputs) {
      CastProblem problem = problem_of(in, config::kDeepSeekRule, kBlock1x128, source);
      problem.groups = 0;
      CastProblem columns = problem, given = problem, two_level = problem;
      columns.columns = {.sums = true, .amax = true};
      expect_sound(columns, kUntunedSpills);
      columns.to_transposed = false;
      expect_sound(columns, kUntunedSpills);
      given.scales_given = true;
      expect_sound(given, kUntunedSpills);
      two_level.two_level = true;
      expect_sound(two_level, kUntunedSpills);
    }
  }
}

CastProblem stack_of(DType in, const config::CastRule& rule, Granularity granularity,
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
    for (const config::CastRule& rule : {config::kDeepGemmRule, config::kDeepSeekRule}) {
      for (const Granularity granularity : {kBlock1x128, kBlock128x128}) {
        expect_sound(stack_of(in, rule, granularity));
        expect_sound(stack_of(in, rule, granularity, false));
      }
      expect_sound(stack_of(in, rule, kBlock128x128, true, false));
      CastProblem mixed = stack_of(in, rule, kBlock1x128);
      mixed.transposed_by_squares = true;
      expect_sound(mixed);
    }
  }
}

TEST_F(NvrtcStackedCastTest, LeavingMatricesAloneTakesNoSpills) {
  for (const DType in : kInputs) {
    for (const Granularity granularity : {kBlock1x128, kBlock128x128, kChannel, kTensor}) {
      for (const bool transposes : {false, true}) {
        CastProblem problem = stack_of(in, config::kDeepGemmRule, granularity, true, transposes);
        problem.skips_unused = true;
        expect_sound(problem);
      }
    }
  }
}

TEST_F(NvrtcStackedCastTest, StepsCompileWithoutSpills) {
  for (const DType in : kInputs) {
    for (const Granularity granularity : {kTensor, kChannel}) {
      for (const bool to_rows : {false, true}) {
        expect_sound(stack_of(in, config::kTorchAoRule, granularity, to_rows));
        expect_sound(stack_of(in, config::kDeepSeekRule, granularity, to_rows));
      }
    }
    expect_sound(stack_of(in, config::kTransformerEngineRule, kTensor, true, false));
    CastProblem mixed = stack_of(in, config::kTorchAoRule, kBlock1x128);
    mixed.transposed_by_channel = true;
    expect_sound(mixed);
  }
}

TEST_F(NvrtcStackedCastTest, OtherFormsCompileWithoutSpills) {
  for (const DType in : kInputs) {
    for (const Granularity granularity : test::kGranularities) {
      CastProblem given = stack_of(in, config::kDeepSeekRule, granularity);
      given.scales_given = true;
      expect_sound(given);
    }
    for (const Granularity granularity : {kBlock1x128, kBlock128x128}) {
      CastProblem two_level = stack_of(in, config::kTorchAoRule, granularity);
      two_level.two_level = true;
      expect_sound(two_level);
      CastProblem bytes = stack_of(unaligned(in), config::kDeepSeekRule, granularity);
      bytes.x_is_aligned = bytes.codes_are_aligned = false;
      expect_sound(bytes);
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
