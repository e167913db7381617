// Casts of stacks of matrices: when they are more than those of one, and the kernels.
#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <variant>
#include <vector>

#include "octofold/error.h"

#include "plan/cast.h"

namespace octofold::plan {
namespace {

using config::CastPhase;
using config::RowCastConfig;
using config::ScaleStepConfig;
using config::SourceKind;
using config::TileCastConfig;
using enum Granularity;
using testing::HasSubstr;

CastProblem problem_of(Granularity granularity, bool to_rows = true, bool to_transposed = true) {
  return {.rows = 1000,
          .cols = 640,
          .format = {.granularity = granularity},
          .to_rows = to_rows,
          .to_transposed = to_transposed,
          .matrices = 4};
}

// The phases of the tiles, of which each matrix has its own.
std::vector<CastPhase> phases(const CastProblem& problem) {
  std::vector<CastPhase> found;
  for (const CastLaunch& launch : cast_launches(problem, kHopper)) {
    std::visit([](const auto& config) { EXPECT_EQ(config.invalid_reason(), nullptr); },
               launch.config);
    const auto* tiles = std::get_if<TileCastConfig>(&launch.config);
    if (tiles == nullptr) continue;
    EXPECT_TRUE(tiles->stacked);
    EXPECT_EQ(tiles->tile_rows, 128);
    EXPECT_EQ(launch.blocks, 4 * 2 * 5);
    found.push_back(tiles->phase);
  }
  return found;
}

TEST(PlanStackedCastsTest, TilesBeginWithEachMatrix) {
  using enum CastPhase;
  using Phases = std::vector<CastPhase>;
  for (const bool to_rows : {false, true}) {
    EXPECT_EQ(phases(problem_of(kBlock1x128, to_rows)), Phases{kWhole});
    EXPECT_EQ(phases(problem_of(kBlock128x128, to_rows)), Phases{kWhole});
    EXPECT_EQ(phases(problem_of(kTensor, to_rows)), (Phases{kAmax, kEncode}));
    EXPECT_EQ(phases(problem_of(kChannel, to_rows)), (Phases{kAmax, kEncode}));
    CastProblem given = problem_of(kChannel, to_rows);
    given.scales_given = true;
    EXPECT_EQ(phases(given), Phases{kEncodeGiven});
  }
  EXPECT_EQ(phases(problem_of(kBlock128x128, true, false)), Phases{kWhole});
  EXPECT_EQ(phases(problem_of(kTensor, true, false)), (Phases{kAmax, kEncode}));
  CastProblem mixed = problem_of(kBlock1x128);
  mixed.transposed_by_channel = true;
  EXPECT_EQ(phases(mixed), (Phases{kAmax, kWholeRows}));
  mixed.transposed_by_channel = false;
  mixed.transposed_by_squares = true;
  EXPECT_EQ(phases(mixed), Phases{kWhole});
  mixed.transposed_by_squares = false;
  mixed.two_level = true;
  EXPECT_EQ(phases(mixed), Phases{kWhole});
}

// Rows that have scales of their own, or squares that end with each matrix anyway.
TEST(PlanStackedCastsTest, RowsAreThoseOfOneMatrix) {
  const auto expect_as_one = [](CastProblem problem) {
    const CastPlan stack = plan_cast(problem, kHopper);
    problem.matrices = 1;
    const CastPlan one = plan_cast(problem, kHopper);
    ASSERT_EQ(stack.kernels.size(), one.kernels.size());
    for (std::size_t i = 0; i < one.kernels.size(); ++i) {
      EXPECT_EQ(stack.kernels[i].kernel, one.kernels[i].kernel);
      EXPECT_EQ(stack.kernels[i].blocks, one.kernels[i].blocks);
    }
  };
  expect_as_one(problem_of(kChannel, true, false));
  expect_as_one(problem_of(kBlock1x128, true, false));
  CastProblem squares = problem_of(kBlock128x128, true, false);
  squares.rows = 4 * 256;
  expect_as_one(squares);
  squares.cols = 100'000;
  expect_as_one(squares);
}

TEST(PlanStackedCastsTest, StepsHaveTheScalesOfAllMatrices) {
  const auto step = [](const CastProblem& problem) {
    const CastLaunch launch = cast_launches(problem, kHopper)[0];
    EXPECT_TRUE(std::get<ScaleStepConfig>(launch.config).stacked);
    return launch.blocks;
  };
  CastProblem tensors = problem_of(kTensor);
  EXPECT_EQ(step(tensors), 1);
  tensors.matrices = tensors.rows = 1000;
  EXPECT_EQ(step(tensors), 4);
  EXPECT_EQ(step(problem_of(kChannel, false)), 10);  // 4 · 640 / 256
  CastProblem tall = problem_of(kChannel);
  tall.rows = 4 * 1000;
  EXPECT_EQ(step(tall), 16);
}

// A transpose's rows are as long as a matrix has rows.
TEST(PlanStackedCastsTest, VectorsAreOfAMatrix) {
  CastProblem problem = problem_of(kBlock128x128);
  const auto stores = [&] {
    return std::get<TileCastConfig>(cast_launches(problem, kHopper)[0].config).vector_stores;
  };
  EXPECT_FALSE(stores());  // 250 rows
  problem.matrices = 5;
  EXPECT_TRUE(stores());
}

TEST(PlanStackedCastsTest, NamesTellThemApart) {
  CastProblem problem = problem_of(kBlock128x128);
  const auto stack = plan_cast(problem, kHopper).kernels[0];
  EXPECT_THAT(stack.description, HasSubstr("stacked"));
  problem.matrices = 5;  // a number that the kernel is told
  problem.rows = 1250;
  EXPECT_EQ(plan_cast(problem, kHopper).kernels[0].kernel, stack.kernel);
  problem.matrices = 1;
  EXPECT_THAT(plan_cast(problem, kHopper).kernels[0].kernel, Not(HasSubstr("stacked")));
}

TEST(PlanStackedCastsTest, WhatNoKernelIsFor) {
  const TileCastConfig good{.to_transposed = true, .stacked = true};
  EXPECT_EQ(good.invalid_reason(), nullptr);
  TileCastConfig config = good;
  config.grouped = true;
  EXPECT_NE(config.invalid_reason(), nullptr);
  config = good;
  config.columns.sums = true;
  EXPECT_NE(config.invalid_reason(), nullptr);
  config = good;
  config.source.kind = SourceKind::kGathered;
  EXPECT_NE(config.invalid_reason(), nullptr);
  config = {.tile_rows = 32, .rows_per_thread = 4, .stacked = true};
  EXPECT_NE(config.invalid_reason(), nullptr);
}

TEST(PlanStackedCastsTest, EmptyAndTooLarge) {
  CastProblem problem = problem_of(kBlock128x128);
  problem.rows = 0;
  EXPECT_TRUE(cast_launches(problem, kHopper).empty());
  problem.format.granularity = kTensor;
  EXPECT_EQ(cast_launches(problem, kHopper).size(), 2u);  // zeros for amax, and their scales
  problem = problem_of(kBlock128x128);
  problem.rows = problem.matrices = std::int64_t{1} << 30;  // a tile each
  EXPECT_THROW(cast_launches(problem, kHopper), Error);
}

}  // namespace
}  // namespace octofold::plan
