#include <array>
#include <set>

#include "plan/small.h"
#include "support/random.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

TEST(PlanTransposeTest, TilesCoverEachMatrix) {
  test::Random random;
  const auto below = [&](std::size_t limit) { return static_cast<std::int64_t>(random() % limit); };
  for (int i = 0; i < 20'000; ++i) {
    const TransposeProblem problem{.matrices = below(4),
                                   .rows = below(600),
                                   .cols = below(600),
                                   .x_is_aligned = below(2) == 1,
                                   .out_is_aligned = below(2) == 1};
    const TransposePlan plan = plan_transpose(problem, kHopper);
    const std::int64_t blocks =
        problem.matrices * ((problem.rows + 127) / 128) * ((problem.cols + 127) / 128);
    ASSERT_EQ(plan.kernels.size(), blocks > 0 ? 1u : 0u);
    if (blocks > 0) EXPECT_EQ(plan.kernels[0].blocks, blocks);
    EXPECT_EQ(plan.config.vector_loads, problem.x_is_aligned && problem.cols % 16 == 0);
    EXPECT_EQ(plan.config.vector_stores, problem.out_is_aligned && problem.rows % 16 == 0);
  }
}

TEST(TransposeTilesTest, EachComesOnce) {
  for (const auto& [matrices, down, across] :
       {std::array{1u, 1u, 1u}, {1u, 1u, 7u}, {1u, 7u, 1u}, {3u, 4u, 5u}, {5u, 3u, 4u}}) {
    const auto tiles = config::TransposeTiles::of(128 * down - 5, 128 * across);
    std::set<std::array<unsigned, 3>> places;
    for (unsigned i = 0; i < matrices * down * across; ++i) {
      const config::TransposeTiles::Place place = tiles.at(i);
      EXPECT_TRUE(place.matrix < matrices && place.down < down && place.across < across);
      EXPECT_TRUE(places.insert({place.matrix, place.down, place.across}).second);
    }
  }
}

TEST(PlanTransposeTest, TooManyTilesAreRefused) {
  EXPECT_EQ(
      test::error_of(
          [] { plan_transpose({.matrices = 1 << 20, .rows = 1 << 14, .cols = 1 << 14}, kHopper); },
          ErrorCode::kUnsupported),
      "transpose: expected fewer than 2^31 tiles, got a matrix 17179869184×16384");
}

}  // namespace
}  // namespace octofold::plan
