// Which kernels reduce columns, and that each row of the workspace is written by one tile.
#include <gtest/gtest.h>
#include <variant>
#include <vector>

#include "plan/cast.h"

namespace octofold::plan {
namespace {

using config::CastPhase;
using config::ColumnReductionConfig;
using config::RowCastConfig;
using config::ScaleStepConfig;
using config::TileCastConfig;

constexpr config::ColumnReductions kSums{.sums = true};

CastProblem problem_of(Granularity granularity, bool to_rows, bool to_transposed) {
  return {.rows = 1000,
          .cols = 640,
          .format = {.granularity = granularity},
          .to_rows = to_rows,
          .to_transposed = to_transposed,
          .columns = kSums};
}

// The phases of the tiles, of which the first reduces the columns, and the last kernel.
std::vector<CastPhase> phases(const CastProblem& problem) {
  std::vector<CastPhase> found;
  const std::vector<CastLaunch> launches = cast_launches(problem, kHopper);
  for (const CastLaunch& launch : launches) {
    EXPECT_FALSE(std::holds_alternative<RowCastConfig>(launch.config));
    const auto* tiles = std::get_if<TileCastConfig>(&launch.config);
    if (tiles == nullptr) continue;
    EXPECT_EQ(tiles->columns, found.empty() ? kSums : config::ColumnReductions{});
    if (found.empty()) {
      EXPECT_EQ(tiles->tile_rows, config::kReducedRows);
      EXPECT_EQ(launch.blocks, 8 * 5);
    }
    found.push_back(tiles->phase);
  }
  const auto* last = std::get_if<ColumnReductionConfig>(&launches.back().config);
  EXPECT_TRUE(last != nullptr && last->columns == kSums);
  EXPECT_EQ(launches.back().blocks, 20);
  return found;
}

TEST(PlanCastColumnsTest, TheFirstTilesReduceThem) {
  using enum CastPhase;
  using Phases = std::vector<CastPhase>;
  for (const bool both : {false, true}) {
    EXPECT_EQ(phases(problem_of(Granularity::kBlock1x128, true, both)), Phases{kWhole});
    EXPECT_EQ(phases(problem_of(Granularity::kBlock128x128, true, both)), Phases{kWhole});
    EXPECT_EQ(phases(problem_of(Granularity::kTensor, true, both)), (Phases{kAmax, kEncode}));
    // Rows that a block could hold go through tiles too.
    EXPECT_EQ(phases(problem_of(Granularity::kChannel, true, both)), (Phases{kAmax, kEncode}));
    CastProblem given = problem_of(Granularity::kChannel, true, both);
    given.scales_given = true;
    EXPECT_EQ(phases(given), Phases{kEncodeGiven});
  }
  CastProblem by_channel = problem_of(Granularity::kBlock1x128, true, true);
  by_channel.transposed_by_channel = true;
  EXPECT_EQ(phases(by_channel), (Phases{kAmax, kWholeRows}));
}

TEST(PlanCastColumnsTest, OtherCastsAreAsTheyWere) {
  for (const bool both : {false, true}) {
    CastProblem problem = problem_of(Granularity::kBlock1x128, true, both);
    problem.columns = {};
    EXPECT_EQ(plan_cast(problem, kHopper).kernels.size(), 1u);
    EXPECT_EQ(plan_cast(problem, kHopper).kernels[0].description.find("columns"),
              std::string::npos);
  }
}

// Sums of no rows are written: they are 0.
TEST(PlanCastColumnsTest, EmptyMatrices) {
  CastProblem problem = problem_of(Granularity::kBlock1x128, true, true);
  problem.rows = 0;
  const std::vector<CastLaunch> launches = cast_launches(problem, kHopper);
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<ColumnReductionConfig>(launches[0].config));
  problem.rows = 5;
  problem.cols = 0;
  EXPECT_TRUE(cast_launches(problem, kHopper).empty());
}

}  // namespace
}  // namespace octofold::plan
