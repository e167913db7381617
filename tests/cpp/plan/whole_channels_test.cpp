// Rows of 1x128 beside a transpose whose rows have one scale each, where a tile or a cluster has
// all of such a row.
#include "plan/cast.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::CastPhase;
using config::TileCastConfig;

CastProblem mixed(std::int64_t rows, std::int64_t cols) {
  return {.rows = rows,
          .cols = cols,
          .format = {.granularity = Granularity::kBlock1x128, .rule = config::kTorchAoRule},
          .to_rows = true,
          .to_transposed = true,
          .transposed_by_channel = true};
}

TileCastConfig tiles_of(const CastLaunch& launch) {
  return std::get<TileCastConfig>(launch.config);
}

// A tile finds them where it has all of their elements, and sums that are no parts of others.
TEST(PlanWholeChannelsTest, ChannelsOfABlockTakeOneKernel) {
  CastProblem problem = mixed(128, 7168);
  problem.columns.sums = true;
  for (const std::int64_t rows : {1, 128}) {
    problem.rows = rows;
    const auto launches = cast_launches(problem, kHopper);
    ASSERT_EQ(launches.size(), 1u);
    EXPECT_EQ(tiles_of(launches[0]).phase, CastPhase::kWhole);
    EXPECT_TRUE(tiles_of(launches[0]).columns.sums);
  }
  problem.rows = 0;
  EXPECT_EQ(cast_launches(problem, kHopper).size(), 3u);  // the scales, and the sums
  problem.rows = 128;
  CastProblem other = problem;
  other.matrices = 2;
  EXPECT_GT(cast_launches(other, kHopper).size(), 1u);
  other = problem;
  other.amax_given = true;
  EXPECT_GT(cast_launches(other, kHopper).size(), 1u);
  other = problem;
  other.groups = 2;
  EXPECT_GT(cast_launches(other, kHopper).size(), 1u);
}

// Or a cluster, where a few tiles have all of them.
TEST(PlanWholeChannelsTest, ChannelsOfAFewBlocksTakeACluster) {
  CastProblem problem = mixed(0, 300);
  for (const auto& [rows, tiles] : {std::pair{129, 2}, std::pair{256, 2}, std::pair{1024, 8}}) {
    problem.rows = rows;
    const CastPlan plan = plan_cast(problem, kHopper);
    ASSERT_EQ(plan.kernels.size(), 1u);
    EXPECT_EQ(plan.kernels[0].cluster_size, tiles);
    EXPECT_EQ(plan.kernels[0].blocks, 3 * tiles);
    EXPECT_EQ(tiles_of(cast_launches(problem, kHopper)[0]).cluster_tiles, tiles);
  }
  problem.columns.sums = true;
  EXPECT_EQ(plan_cast(problem, kHopper).kernels.size(), 2u);
  problem.columns.sums = false;
  EXPECT_EQ(cast_launches(problem, gpu_of(80, 108)).size(), 4u);  // which has no clusters
  problem.rows = 1025;
  EXPECT_EQ(cast_launches(problem, kHopper).size(), 4u);
  for (const KernelPlan& kernel : plan_cast(problem, kHopper).kernels) {
    EXPECT_EQ(kernel.cluster_size, 1);
  }
}

}  // namespace
}  // namespace octofold::plan
