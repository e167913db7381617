// The kernels of casts and conversions, compiled for their GPU: no register leaves the register
// file, and no exchange between lanes has to collect them first.
#include "plan/cast.h"
#include "plan/small.h"
#include "support/granularities.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using plan::CastProblem;
using test::Compiler;

constexpr std::array kInputs{DType::kFloat32, DType::kFloat16, DType::kBFloat16};

enum class Targets { kRows, kTransposed, kBoth };

class NvrtcCastTest
    : public test::NvrtcTest<testing::TestWithParam<std::tuple<Granularity, Targets>>> {};

// Scales of rows: rows that a warp, 256 threads, 512, a cluster and none of them holds.
void expect_sound_at_every_width(Compiler& compiler, CastProblem problem) {
  const bool rows = problem.format.granularity == Granularity::kChannel && !problem.to_transposed;
  for (const std::int64_t cols : {512, 7168, 28'672, 100'000, 500'000}) {
    problem.cols = cols;
    compiler.expect_sound(problem);
    if (!rows) break;
  }
  problem.scales_given = true;
  compiler.expect_sound(problem);
}

// One rule of each form, the one whose logarithm needs FP64 among them. Types of codes and overflow
// change a few instructions, so they take turns.
TEST_P(NvrtcCastTest, CompilesWithoutSpillsAndBranchedExchanges) {
  const auto [granularity, targets] = GetParam();
  Compiler compiler;
  CastProblem problem{.rows = 256,
                      .format = {.granularity = granularity},
                      .to_rows = targets != Targets::kTransposed,
                      .to_transposed = targets != Targets::kRows};
  for (const bool aligned : {true, false}) {
    problem.x_is_aligned = problem.codes_are_aligned = aligned;
    for (const DType in : kInputs) {
      if (!aligned && in == DType::kFloat16) continue;  // as BF16 but for a conversion
      problem.format.in = in;
      for (const config::CastRule& rule :
           {config::kVllmTritonRule, config::kDeepGemmRule, config::kTorchAoRule}) {
        // The largest will do, and for FP16, which is as BF16 but for a conversion.
        const bool is_largest = rule.arithmetic == config::CastArithmetic::kDivide;
        if ((!aligned || in == DType::kFloat16) && !is_largest) continue;
        problem.format.rule = rule;
        problem.format.power_of_two = !problem.format.power_of_two;
        problem.format.saturate = !problem.format.saturate;
        problem.format.out = problem.format.saturate ? DType::kE4M3 : DType::kE5M2;
        expect_sound_at_every_width(compiler, problem);
      }
      // Its divisions are the longest code.
      problem.format.rule = config::kCompressedTensorsRule;
      expect_sound_at_every_width(compiler, problem);
    }
  }
}

using NvrtcMixedCastTest = test::NvrtcTest<>;
TEST_F(NvrtcMixedCastTest, RowsOfBlocksBesideChannelsCompileWithoutSpills) {
  Compiler compiler;
  for (const DType in : kInputs) {
    for (const config::CastRule& rule : {config::kVllmTritonRule, config::kTorchAoRule}) {
      for (const std::int64_t rows : {256, 2048}) {  // by a cluster, and by four kernels
        compiler.expect_sound(CastProblem{.rows = rows,
                                          .cols = 512,
                                          .format = {.in = in, .rule = rule},
                                          .to_transposed = true,
                                          .transposed_by_channel = true});
      }
    }
  }
}

TEST_F(NvrtcMixedCastTest, TwoLevelScalesCompileWithoutSpills) {
  Compiler compiler;
  const auto expect_sound = [&](DType in, const config::CastRule& rule, Granularity granularity,
                                Targets targets, bool aligned, bool amax = false) {
    compiler.expect_sound(
        CastProblem{.rows = 256,
                    .cols = 512,
                    .format = {.in = in, .granularity = granularity, .rule = rule},
                    .to_rows = targets != Targets::kTransposed,
                    .to_transposed = targets != Targets::kRows,
                    .two_level = true,
                    .columns = {.amax = amax},
                    .x_is_aligned = aligned,
                    .codes_are_aligned = aligned});
  };
  using enum Granularity;
  for (const DType in : kInputs) {  // the longest code, and what layers use
    for (const config::CastRule& rule : {config::kVllmTritonRule, config::kTorchAoRule}) {
      expect_sound(in, rule, kBlock1x128, Targets::kBoth, true, true);
    }
    expect_sound(in, config::kVllmTritonRule, kBlock128x128, Targets::kBoth, true);
  }
  expect_sound(DType::kFloat16, config::kDeepGemmRule, kBlock128x128, Targets::kRows, true);
  expect_sound(DType::kBFloat16, config::kCompressedTensorsRule, kBlock128x128,
               Targets::kTransposed, true);
  expect_sound(DType::kBFloat16, config::kVllmTritonRule, kBlock1x128, Targets::kBoth, false);
}

using NvrtcColumnsTest = test::NvrtcTest<>;
// Beside what takes most registers: casts both ways, activations worked out, halves together.
TEST_F(NvrtcColumnsTest, ReductionsCompileWithoutSpills) {
  Compiler compiler;
  const auto expect_sound = [&](DType in, const config::CastSource& source, bool to_rows,
                                config::ColumnReductions columns, Granularity granularity,
                                bool aligned = true) {
    CastProblem problem{.rows = 256,
                        .cols = 1024,
                        .format = {.in = in, .granularity = granularity},
                        .source = source,
                        .to_rows = to_rows,
                        .to_transposed = true};
    problem.columns = columns;
    problem.x_is_aligned = problem.codes_are_aligned = aligned;
    compiler.expect_sound(problem);
  };
  using enum Granularity;
  constexpr config::ColumnReductions kBoth{.sums = true, .amax = true}, kSums{.sums = true};
  const auto swiglu = config::CastSource::of(config::SourceKind::kActivationGradient,
                                             Activation::kSwiGlu, GateLayout::kHalves);
  for (const DType in : kInputs) {
    expect_sound(in, {}, true, kBoth, kBlock1x128);
    expect_sound(in, swiglu, true, kSums, kBlock1x128);
  }
  expect_sound(DType::kBFloat16, {}, true, kSums, kBlock128x128);
  expect_sound(DType::kBFloat16, {}, false, kSums, kChannel);
  expect_sound(DType::kBFloat16, {}, true, kBoth, kTensor);
  expect_sound(DType::kFloat16, {}, true, kBoth, kBlock1x128, false);
}

using Info = testing::TestParamInfo<std::tuple<Granularity, Targets>>;

std::string name_of(const Info& info) {
  constexpr std::array kGranularities{"Tensor", "Channel", "Block1x128", "Block128x128"};
  constexpr std::array kTargets{"Rows", "Transposed", "Both"};
  const auto [granularity, targets] = info.param;
  return std::string(kGranularities[as_size(granularity)]) + kTargets[as_size(targets)];
}

INSTANTIATE_TEST_SUITE_P(Casts, NvrtcCastTest,
                         testing::Combine(testing::ValuesIn(test::kGranularities),
                                          testing::Values(Targets::kRows, Targets::kTransposed,
                                                          Targets::kBoth)),
                         name_of);

using NvrtcActivationTest = test::NvrtcTest<>;
// One choice will do of all that a source changes nothing in (rules, wide rows).
TEST_F(NvrtcActivationTest, SourcesCompileWithoutSpills) {
  Compiler compiler;
  for (const auto kind :
       {config::SourceKind::kActivation, config::SourceKind::kActivationGradient}) {
    const auto expect_sound = [&](Granularity granularity, DType in, Activation activation,
                                  GateLayout layout, bool rows, bool transposed, bool aligned) {
      compiler.expect_sound(CastProblem{.rows = 256,
                                        .cols = 7168,
                                        .format = {.in = in, .granularity = granularity},
                                        .source = {kind, activation, layout},
                                        .to_rows = rows,
                                        .to_transposed = transposed,
                                        .x_is_aligned = aligned,
                                        .codes_are_aligned = aligned});
    };
    using enum Granularity;
    using enum Activation;
    using enum GateLayout;
    for (const Activation activation :
         {kSwiGlu, kGeGluTanh, kGeGluErf, kSwiGluOss, kSilu, kGelu, kGeluTanh, kReluSquared}) {
      expect_sound(kBlock1x128, DType::kBFloat16, activation, kHalves, true, true, true);
    }
    for (const Granularity granularity : test::kGranularities) {
      expect_sound(granularity, DType::kBFloat16, kSwiGlu, kHalves, true, false, true);
      expect_sound(granularity, DType::kFloat16, kSwiGlu, kInterleaved, true, true, true);
      expect_sound(granularity, DType::kFloat32, kSwiGlu, kHalves, false, true, true);
      expect_sound(granularity, DType::kBFloat16, kGeGluErf, kHalves, true, false, false);
    }
    expect_sound(kBlock1x128, DType::kFloat32, kGeGluErf, kInterleaved, true, true, false);
    expect_sound(kBlock1x128, DType::kFloat16, kGeGluTanh, kHalves, true, true, false);
  }
}

// The kernels take x in FP8: each way in which its pieces lie, and each unit of its scales.
TEST_F(NvrtcActivationTest, SourcesInFp8CompileWithoutSpills) {
  Compiler compiler;
  using enum config::SourceKind;
  using enum Granularity;
  const auto expect_sound = [&](config::SourceKind kind, Activation activation, GateLayout layout,
                                DType in, Granularity of_x, Granularity granularity, bool rows,
                                std::int64_t cols, bool aligned) {
    compiler.expect_sound(CastProblem{
        .rows = 256,
        .cols = cols,
        .format = {.in = in, .granularity = granularity},
        .source = config::CastSource::of(kind, activation, layout).of_codes(DType::kE4M3, of_x),
        .to_rows = rows,
        .to_transposed = true,
        .x_is_aligned = aligned,
        .codes_are_aligned = aligned});
  };
  for (const config::SourceKind kind : {kActivation, kActivationGradient}) {
    expect_sound(kind, Activation::kSwiGlu, GateLayout::kHalves, DType::kBFloat16, kBlock1x128,
                 kBlock1x128, true, 7168, true);
    expect_sound(kind, Activation::kGeGluErf, GateLayout::kInterleaved, DType::kFloat32,
                 kBlock128x128, kBlock1x128, true, 7168, true);
    expect_sound(kind, Activation::kGeGluErf, GateLayout::kInterleaved, DType::kFloat16, kChannel,
                 kBlock128x128, true, 7168, true);
    expect_sound(kind, Activation::kGelu, GateLayout::kHalves, DType::kFloat16, kTensor,
                 kBlock1x128, false, 7168, true);
    // Halves that no tile takes together; no vectors.
    expect_sound(kind, Activation::kGeGluTanh, GateLayout::kHalves, DType::kFloat32, kBlock1x128,
                 kBlock1x128, true, 7168 + 16, true);
    expect_sound(kind, Activation::kSwiGlu, GateLayout::kHalves, DType::kBFloat16, kBlock1x128,
                 kBlock1x128, true, 7168, false);
    // The fewest registers for the longest code.
    for (const config::CastRule& rule : {config::kVllmTritonRule, config::kCompressedTensorsRule}) {
      compiler.expect_sound(CastProblem{
          .rows = 256,
          .cols = 7168,
          .format = {.in = DType::kFloat16, .rule = rule},
          .source = config::CastSource::of(kind, Activation::kSwiGlu, GateLayout::kInterleaved)
                        .of_codes(DType::kE4M3, kBlock1x128)});
    }
    // Rows.
    compiler.expect_sound(
        CastProblem{.rows = 256,
                    .cols = 7168,
                    .format = {.granularity = kChannel},
                    .source = config::CastSource::of(kind, Activation::kSwiGlu, GateLayout::kHalves)
                                  .of_codes(DType::kE5M2, kBlock1x128)});
  }
}

using NvrtcConvertTest = test::NvrtcTest<>;
TEST_F(NvrtcConvertTest, EveryPairCompilesWithoutSpills) {
  Compiler compiler;
  for (int in = 0; in < 5; ++in) {
    for (int out = 0; out < 5; ++out) {
      compiler.expect_sound(plan::ConvertProblem{.rows = 64,
                                                 .cols = 4096,
                                                 .in = static_cast<DType>(in),
                                                 .out = static_cast<DType>(out),
                                                 .saturate = in % 2 == 0,
                                                 .is_aligned = (in + out) % 2 == 0});
    }
  }
}

TEST_F(NvrtcConvertTest, DequantizeCompilesWithoutSpills) {
  Compiler compiler;
  for (const Granularity granularity : test::kGranularities) {
    for (const DType out : kInputs) {
      for (const bool aligned : {true, false}) {
        compiler.expect_sound(plan::ConvertProblem{.rows = 64,
                                                   .cols = 4096,
                                                   .in = DType::kE4M3,
                                                   .out = out,
                                                   .scaled = true,
                                                   .granularity = granularity,
                                                   .is_aligned = aligned});
      }
    }
  }
  compiler.expect_sound(plan::ConvertProblem{.rows = 64,
                                             .cols = 4096,
                                             .scaled = true,
                                             .granularity = Granularity::kBlock128x128,
                                             .has_channel_scale = true});
}

using NvrtcTransposeTest = test::NvrtcTest<>;
TEST_F(NvrtcTransposeTest, CompilesWithoutSpills) {
  Compiler compiler;
  for (const bool x_is_aligned : {true, false}) {
    for (const bool out_is_aligned : {true, false}) {
      compiler.expect_sound(plan::plan_transpose({.rows = 256,
                                                  .cols = 256,
                                                  .x_is_aligned = x_is_aligned,
                                                  .out_is_aligned = out_is_aligned},
                                                 plan::kHopper)
                                .kernels);
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
