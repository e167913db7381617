// Casts whose units' largest magnitudes are given: x is read once, by the kernels of others
// wherever these will do.
#include "plan/cast.h"
#include "support/product_plans.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::CastPhase;
using config::ScaleStep;
using config::ScaleStepConfig;
using config::TileCastConfig;
using enum Granularity;

CastProblem problem_of(Granularity granularity, bool to_rows, bool to_transposed,
                       const config::CastRule& rule = config::kTorchAoRule) {
  return {.rows = 2000,  // more than a cluster finds without them
          .cols = 640,
          .format = {.granularity = granularity, .rule = rule},
          .to_rows = to_rows,
          .to_transposed = to_transposed,
          .amax_given = true};
}

CastProblem beside_rows_of_blocks(const config::CastRule& rule = config::kTorchAoRule) {
  CastProblem problem = problem_of(kBlock1x128, true, true, rule);
  problem.transposed_by_channel = true;
  return problem;
}

// The kernel of codes, between the steps of scales.
TileCastConfig codes_of(const CastProblem& problem) {
  const std::vector<CastLaunch> launches = cast_launches(problem, kHopper);
  EXPECT_EQ(launches.size(), problem.columns.any() ? 4u : 3u);
  EXPECT_EQ(std::get<ScaleStepConfig>(launches[0].config).step, ScaleStep::kTake);
  EXPECT_EQ(std::get<ScaleStepConfig>(launches[2].config).step, ScaleStep::kFinish);
  for (const CastLaunch& launch : launches) {
    std::visit([](const auto& config) { EXPECT_EQ(config.invalid_reason(), nullptr); },
               launch.config);
  }
  return std::get<TileCastConfig>(launches[1].config);
}

TileCastConfig of_found(CastProblem problem) {
  problem.amax_given = false;
  return std::get<TileCastConfig>(cast_launches(problem, kHopper)[2].config);
}

TEST(PlanGivenAmaxTest, XIsReadOnce) {
  for (const Granularity granularity : {kTensor, kChannel}) {
    for (const auto& [rows, transposed] : {std::pair{true, false}, {false, true}, {true, true}}) {
      EXPECT_EQ(codes_of(problem_of(granularity, rows, transposed)).phase, CastPhase::kEncode);
    }
  }
  EXPECT_EQ(codes_of(beside_rows_of_blocks()).phase, CastPhase::kWholeRows);
}

// The kernels of largest magnitudes that were found, unless values beyond them are divided, or
// both targets share one.
TEST(PlanGivenAmaxTest, KernelsAreShared) {
  for (const config::CastRule& rule :
       {config::kDeepGemmRule, config::kTorchAoRule, config::kTransformerEngineRule,
        config::kCompressedTensorsRule, config::kVllmRule, config::kDeepSeekRule}) {
    const bool divides = rule.arithmetic == config::CastArithmetic::kDivide;
    const auto expect_shared = [&](const CastProblem& problem, bool shared) {
      TileCastConfig codes = codes_of(problem);
      EXPECT_EQ(codes.amax_given, !shared);
      codes.amax_given = false;
      EXPECT_EQ(codes, of_found(problem));
    };
    expect_shared(beside_rows_of_blocks(rule), !divides);
    expect_shared(problem_of(kChannel, true, true, rule), !divides);
    expect_shared(problem_of(kTensor, true, false, rule), !divides);
    expect_shared(problem_of(kTensor, false, true, rule), !divides);
    expect_shared(problem_of(kTensor, true, true, rule), false);
  }
}

// Names of kernels say nothing of it where it is not so: they are those of before.
TEST(PlanGivenAmaxTest, NamesTellThemApart) {
  const auto codes = [](const CastProblem& problem) {
    return plan_cast(problem, kHopper).kernels[1];
  };
  EXPECT_THAT(codes(beside_rows_of_blocks()).kernel, Not(HasSubstr("amax_given")));
  const KernelPlan divided = codes(beside_rows_of_blocks(config::kDeepSeekRule));
  EXPECT_THAT(divided.description, HasSubstr("amax_given"));
  EXPECT_NE(divided.kernel, codes(beside_rows_of_blocks()).kernel);
}

TEST(PlanGivenAmaxTest, TheOneReadReducesColumns) {
  for (CastProblem problem : {beside_rows_of_blocks(), problem_of(kChannel, true, false),
                              problem_of(kTensor, true, true)}) {
    problem.columns = {.sums = true, .amax = true};
    const TileCastConfig codes = codes_of(problem);
    EXPECT_TRUE(codes.columns.sums && codes.columns.amax);
    EXPECT_EQ(codes.tile_rows, 128);
  }
}

TEST(PlanGivenAmaxTest, GroupsAndStacks) {
  CastProblem groups = beside_rows_of_blocks(), stack = beside_rows_of_blocks();
  groups.groups = 6;
  EXPECT_TRUE(codes_of(groups).grouped);
  stack.matrices = 4;
  EXPECT_TRUE(codes_of(stack).stacked);
  const auto take = std::get<ScaleStepConfig>(cast_launches(stack, kHopper)[0].config);
  EXPECT_TRUE(take.stacked && take.to_transposed && !take.to_rows);
}

TEST(PlanGivenAmaxTest, ScalesOfNothingAreWritten) {
  CastProblem problem = problem_of(kChannel, false, true);
  problem.rows = 0;
  EXPECT_EQ(cast_launches(problem, kHopper).size(), 2u);  // the codes fall away
}

TEST(PlanGivenAmaxTest, WhatNoKernelIsFor) {
  for (const CastPhase phase : {CastPhase::kWhole, CastPhase::kEncodeGiven}) {
    const TileCastConfig config{.phase = phase, .amax_given = true};
    EXPECT_THAT(config.invalid_reason(), testing::NotNull());
  }
}

}  // namespace
}  // namespace octofold::plan
