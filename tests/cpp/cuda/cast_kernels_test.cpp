// The kernels of casts and conversions, compiled for their GPU: no register leaves the register
// file.
#include <array>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <tuple>

#include "cuda/kernel_headers.h"
#include "jit/nvrtc.h"
#include "plan/cast.h"
#include "support/nvrtc.h"

namespace octofold::cuda {
namespace {

using config::CastDirection;
using plan::CastProblem;

constexpr std::array kInputs{DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// Compiles kernels, each one once.
class Compiler {
 public:
  void expect_sound(const char* header, const std::string& kernel, const std::string& description) {
    if (!compiled_.insert(kernel).second) return;
    const jit::Binary binary = jit::compile(
        {header, kernel, plan::architecture(plan::kHopper), description}, kernel_headers());
    EXPECT_EQ(binary.resources.spill_store_bytes, 0) << kernel;
    EXPECT_EQ(binary.resources.stack_bytes, 0) << kernel;
  }

  void expect_sound(const CastProblem& problem) {
    for (const plan::CastLaunch& step : plan::cast_launches(problem, plan::kHopper)) {
      expect_sound(plan::kCastHeader, plan::kernel_name(plan::kCastKernel, step.config),
                   plan::describe(step.config));
    }
  }

  void expect_sound(const plan::ConvertProblem& problem) {
    const config::ConvertConfig config = plan::plan_convert(problem, plan::kHopper).config;
    expect_sound(plan::kConvertHeader, plan::kernel_name(plan::kConvertKernel, config),
                 plan::describe(config));
  }

 private:
  std::set<std::string> compiled_;
};

class NvrtcCastTest : public testing::TestWithParam<std::tuple<Granularity, CastDirection>> {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
  }
};

// Row scales: rows that a warp, 256 threads, 512, a cluster and none of them holds.
void expect_sound_at_every_width(Compiler& compiler, CastProblem problem) {
  const bool rows =
      problem.unit == Granularity::kChannel && problem.direction == CastDirection::kRows;
  for (const std::int64_t cols : {512, 7168, 28'672, 100'000, 500'000}) {
    problem.cols = cols;
    compiler.expect_sound(problem);
    if (!rows) break;
  }
}

// One rule of each form, the one whose logarithm needs FP64 among them. Types of codes and overflow
// change a few instructions, so they take turns.
TEST_P(NvrtcCastTest, CompilesWithoutSpills) {
  const auto [unit, direction] = GetParam();
  Compiler compiler;
  CastProblem problem{.rows = 256, .unit = unit, .direction = direction};
  for (const bool aligned : {true, false}) {
    problem.x_is_aligned = problem.codes_are_aligned = aligned;
    for (const DType in : kInputs) {
      problem.in = in;
      for (const config::CastRule& rule :
           {config::kVllmRule, config::kDeepGemmRule, config::kTorchAoRule}) {
        if (!aligned && rule.form != config::CastForm::kDivide) continue;  // the largest will do
        problem.rule = rule;
        problem.power_of_two = !problem.power_of_two;
        problem.saturate = !problem.saturate;
        problem.out = problem.saturate ? DType::kE4M3 : DType::kE5M2;
        expect_sound_at_every_width(compiler, problem);
      }
      // Its divisions are the longest code.
      problem.rule = config::kCompressedTensorsRule;
      expect_sound_at_every_width(compiler, problem);
    }
  }
}

using Info = testing::TestParamInfo<std::tuple<Granularity, CastDirection>>;

std::string name_of(const Info& info) {
  constexpr std::array kUnits{"Tensor", "Channel", "Block1x128", "Block128x128"};
  constexpr std::array kDirections{"Rows", "Transposed", "Both"};
  const auto [unit, direction] = info.param;
  return std::string(kUnits[static_cast<std::size_t>(unit)]) +
         kDirections[static_cast<std::size_t>(direction)];
}

INSTANTIATE_TEST_SUITE_P(
    Casts, NvrtcCastTest,
    testing::Combine(testing::Values(Granularity::kTensor, Granularity::kChannel,
                                     Granularity::kBlock1x128, Granularity::kBlock128x128),
                     testing::Values(CastDirection::kRows, CastDirection::kTransposed,
                                     CastDirection::kBoth)),
    name_of);

TEST(NvrtcConvertTest, EveryPairCompilesWithoutSpills) {
  if (test::nvrtc_is_missing()) GTEST_SKIP();
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

TEST(NvrtcConvertTest, DequantizeCompilesWithoutSpills) {
  if (test::nvrtc_is_missing()) GTEST_SKIP();
  Compiler compiler;
  for (const auto unit : {Granularity::kTensor, Granularity::kChannel, Granularity::kBlock1x128,
                          Granularity::kBlock128x128}) {
    for (const DType out : kInputs) {
      for (const bool aligned : {true, false}) {
        compiler.expect_sound(plan::ConvertProblem{.rows = 64,
                                                   .cols = 4096,
                                                   .in = DType::kE4M3,
                                                   .out = out,
                                                   .scaled = true,
                                                   .unit = unit,
                                                   .is_aligned = aligned});
      }
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
