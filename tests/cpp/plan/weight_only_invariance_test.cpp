// How batch-invariant products with FP8 weights are planned: whatever may be chosen sums a row
// alike, however many rows there are.
#include <gtest/gtest.h>
#include <set>
#include <tuple>
#include <variant>

#include "kernels/weight_only/config/config.h"
#include "plan/weight_only.h"
#include "support/granularities.h"
#include "support/random.h"

namespace octofold::plan {
namespace {

using config::Work;

constexpr std::int64_t kRows[] = {1,  2,  7,   8,   9,   16,  17,  31,  32,   33,   64,
                                  65, 96, 100, 128, 129, 300, 512, 777, 1024, 4096, 8192};

// Measured on an H200: kernels that are alike in these give a row the same bits, others do not.
using SumsOfRow = std::tuple<bool, int, std::int64_t, bool, bool, Work>;

SumsOfRow sums_of(const WeightOnlyWork& work) {
  const auto& config = work.config;
  return {false, config.warps_depth, work.splits, config.ahead, config.has_blocks(), config.work};
}

SumsOfRow sums_of(const config::Sm90WeightOnlyConfig& config) {
  return {true,       config.depth_groups, config.split_k, config.unit_sums, config.w_blocks,
          config.work};
}

WeightOnlyProblem draw(test::Random& random) {
  constexpr DType kTypes[] = {DType::kFloat16,  DType::kBFloat16, DType::kFloat16,
                              DType::kBFloat16, DType::kFloat32,  DType::kE4M3};
  const auto below = [&](unsigned limit) { return static_cast<std::int64_t>(random() % limit); };
  WeightOnlyProblem problem{.columns = 1 + below(20'000),
                            .depth = 1 + below(20'000),
                            .w = random() % 2 ? DType::kE4M3 : DType::kE5M2,
                            .x = kTypes[random() % std::size(kTypes)],
                            .out = DType::kFloat32,
                            .w_scales = test::kGranularities[random() % 4],
                            .batch_invariant = true};
  if (random() % 2 == 0) problem.depth = 16 * (1 + below(1'200));
  if (size_of(problem.x) != 2) {
    problem.x_blocks = is_fp8(problem.x) && random() % 2 == 0;
    return problem;
  }
  problem.transposed = random() % 2 == 0;
  if (random() % 2 == 0) {
    problem.work = random() % 2 == 0 ? Work::kGroupedRows : Work::kMaskedRows;
    problem.groups = 1 + below(200);
    problem.gathered = problem.work == Work::kGroupedRows && random() % 2 == 0;
  }
  return problem;
}

// Sets the rows, for a contiguous x and W; an x of one row fits TMA whatever its length is.
void set_rows(WeightOnlyProblem& problem, std::int64_t rows) {
  problem.rows = rows;
  if (problem.work == Work::kMaskedRows) {
    problem.rows = 8192;
    problem.expected = rows;
  }
  const std::int64_t of_w = problem.transposed ? problem.columns : problem.depth;
  problem.is_aligned = problem.fits_tma =
      of_w % 16 == 0 && (problem.depth % 8 == 0 || problem.rows == 1);
  problem.has_workspace = !config::has_groups(problem.work) &&
                          config::weight_only_splits(rows, problem.columns, problem.depth) > 1;
}

TEST(WeightOnlyInvarianceTest, AllCandidatesOfAllNumbersOfRowsSumARowAlike) {
  test::Random random;
  for (int i = 0; i < 400; ++i) {
    WeightOnlyProblem problem = draw(random);
    for (const int capability : {75, 80, 89, 90, 120}) {
      if (problem.x == DType::kBFloat16 && capability < 80) continue;
      const Gpu gpu = gpu_of(capability, capability == 90 ? 132 : 100);
      std::set<SumsOfRow> ways;
      for (const std::int64_t rows : kRows) {
        if (size_of(problem.x) != 2 && rows > 16) break;
        set_rows(problem, rows);
        const auto candidates = weight_only_candidates(problem, gpu);
        ASSERT_FALSE(candidates.empty()) << describe(problem) << " on " << capability;
        for (const auto& [name, choice] : candidates) {
          ways.insert(std::visit([](const auto& one) { return sums_of(one); }, choice));
        }
        EXPECT_EQ(ways.size(), 1u)
            << describe(problem) << " on " << capability << ": " << candidates.back().name;
      }
    }
  }
}

// Rows fill no multiprocessors by themselves: where W has few rows and long ones, blocks share its
// tiles, whatever the batch; where it has many they need not.
TEST(WeightOnlyInvarianceTest, BlocksOfHopperShareTilesByTheSizeOfW) {
  const auto config_of = [](std::int64_t rows, std::int64_t columns, std::int64_t depth) {
    const WeightOnlyProblem problem{.rows = rows,
                                    .columns = columns,
                                    .depth = depth,
                                    .w_scales = Granularity::kBlock128x128,
                                    .batch_invariant = true};
    return std::get<config::Sm90WeightOnlyConfig>(plan_weight_only(problem, kHopper).config);
  };
  for (const std::int64_t rows : {1, 16, 64, 4096}) {
    EXPECT_GT(config_of(rows, 2112, 7168).split_k, 1) << rows;
    EXPECT_EQ(config_of(rows, 24576, 1536).split_k, 1) << rows;
    EXPECT_TRUE(config_of(rows, 4096, 7168).unit_sums) << rows;
  }
  EXPECT_EQ(config_of(1, 4096, 7168).tile_rows, 8);
  EXPECT_GE(config_of(4096, 4096, 7168).tile_rows, 128);
}

// Others may still have what few rows gain by.
TEST(WeightOnlyInvarianceTest, OthersDivideTheDepthAsRowsWantIt) {
  std::set<SumsOfRow> ways;
  WeightOnlyProblem problem{.columns = 4096, .depth = 7168};
  for (const std::int64_t rows : kRows) {
    set_rows(problem, rows);
    ways.insert(std::visit([](const auto& one) { return sums_of(one); },
                           plan_weight_only(problem, kHopper).config));
  }
  EXPECT_GT(ways.size(), 3u);
}

}  // namespace
}  // namespace octofold::plan
