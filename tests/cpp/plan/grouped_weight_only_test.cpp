// How products of groups of rows with FP8 weights are planned: by the tiles that groups are
// expected to have.
#include <gmock/gmock.h>
#include <random>

#include "plan/weight_only.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::WeightOnlyConfig;
using config::Work;

const WeightOnlyWork& work_of(const WeightOnlyPlan& plan) {
  return std::get<WeightOnlyWork>(plan.config);
}

WeightOnlyProblem of_rows(std::int64_t rows, std::int64_t groups, bool gathered = true) {
  return {.rows = rows,
          .columns = 1536,
          .depth = 2048,
          .w_scales = Granularity::kBlock128x128,
          .work = Work::kGroupedRows,
          .groups = groups,
          .gathered = gathered};
}

WeightOnlyProblem of_masked(std::int64_t rows, std::int64_t groups, std::int64_t expected) {
  WeightOnlyProblem problem = of_rows(rows, groups, false);
  problem.work = Work::kMaskedRows;
  problem.expected = expected;
  return problem;
}

std::int64_t tiles_of(const std::vector<std::int64_t>& sizes, int tile_rows) {
  std::int64_t tiles = 0;
  for (const std::int64_t size : sizes) tiles += (size + tile_rows - 1) / tile_rows;
  return tiles;
}

// Rows that fall to groups at random have at most `most` tiles, about as many as expected.
TEST(PlanGroupedWeightOnlyTest, TilesAreThoseOfRandomGroups) {
  std::mt19937 random(1);
  for (const std::int64_t groups : {1, 8, 128}) {
    for (const std::int64_t rows : {1, 8, 64, 700, 9000}) {
      for (const int tile_rows : {1, 4, 16, 64}) {
        const RowTiles tiles = row_tiles(of_rows(rows, groups), tile_rows);
        double sum = 0, used = 0;
        constexpr int kDraws = 60;
        for (int i = 0; i < kDraws; ++i) {
          std::vector<std::int64_t> sizes(as_size(groups));
          for (std::int64_t row = 0; row < rows; ++row) {
            ++sizes[random() % as_size(groups)];
          }
          const std::int64_t count = tiles_of(sizes, tile_rows);
          EXPECT_LE(count, tiles.most);
          sum += static_cast<double>(count) / kDraws;
          used += static_cast<double>(groups - std::ranges::count(sizes, 0)) / kDraws;
        }
        SCOPED_TRACE(testing::Message() << rows << " " << groups << " " << tile_rows);
        EXPECT_NEAR(tiles.expected, sum, 0.1 * sum + 0.6);
        EXPECT_NEAR(tiles.matrices, used, 0.1 * used + 0.5);
      }
    }
  }
  const RowTiles masked = row_tiles(of_masked(100, 4, 10), 16);
  EXPECT_EQ(masked.most, 4 * 7);
  EXPECT_NEAR(masked.expected, 4, 0.5);
  EXPECT_EQ(row_tiles(of_masked(100, 4, 0), 16).expected, 1);
}

// Decoding reads the weights of the experts that are used once, by tiles of few rows.
TEST(PlanGroupedWeightOnlyTest, FewRowsHaveSmallTiles) {
  for (const std::int64_t rows : {8, 64, 256}) {
    const WeightOnlyProblem problem = of_rows(rows, 128);
    const WeightOnlyPlan plan = plan_weight_only(problem, kHopper);
    const WeightOnlyConfig& config = work_of(plan).config;
    EXPECT_LE(config.tile_rows, 16) << name_of(work_of(plan));
    const RowTiles tiles = row_tiles(problem, config.tile_rows);
    EXPECT_LE(tiles.expected, 1.2 * tiles.matrices) << name_of(work_of(plan));
    EXPECT_GE(plan.kernels[0].blocks, 2 * 132);
  }
}

// Room for many rows makes no blocks for them.
TEST(PlanGroupedWeightOnlyTest, BlocksAreAsManyAsAreExpected) {
  const WeightOnlyPlan plan = plan_weight_only(of_masked(4096, 32, 4), kHopper);
  EXPECT_LE(plan.kernels[0].blocks, 32 * 2 * (1536 / 16));
}

TEST(PlanGroupedWeightOnlyTest, ManyRowsHaveLargeTiles) {
  const WeightOnlyPlan plan = plan_weight_only(of_rows(65536, 128), gpu_of(80, 108));
  const WeightOnlyConfig& config = work_of(plan).config;
  EXPECT_GE(config.tile_rows * config.tile_columns, 64 * 128) << name_of(work_of(plan));
}

// Hopper's own kernel takes rows that lie one after another, from some of them for each matrix on.
TEST(PlanGroupedWeightOnlyTest, HopperHasAKernelOfItsOwn) {
  const auto is_own = [](const WeightOnlyProblem& problem) {
    const auto config = plan_weight_only(problem, kHopper).config;
    return std::holds_alternative<config::Sm90WeightOnlyConfig>(config);
  };
  EXPECT_TRUE(is_own(of_rows(65536, 128, false)));
  EXPECT_TRUE(is_own(of_masked(1024, 32, 20)));
  EXPECT_FALSE(is_own(of_rows(65536, 128, true)));
  EXPECT_FALSE(is_own(of_rows(1024, 128, false)));
  EXPECT_FALSE(is_own(of_masked(1024, 32, 4)));
  WeightOnlyProblem gradient = of_rows(65536, 128, false);
  gradient.transposed = true;
  EXPECT_TRUE(is_own(gradient));
  gradient.depth = 2000;  // behind a group's part of the depth the next one begins
  EXPECT_FALSE(is_own(gradient));
}

TEST(PlanGroupedWeightOnlyTest, SaysWhatTheyAre) {
  EXPECT_THAT(describe(of_rows(64, 128)), testing::HasSubstr("groups of rows, groups 128"));
  EXPECT_THAT(describe(WeightOnlyProblem{.rows = 3, .columns = 4, .depth = 5}),
              testing::Not(testing::HasSubstr("groups")));
}

}  // namespace
}  // namespace octofold::plan
