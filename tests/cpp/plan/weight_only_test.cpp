#include "plan/weight_only.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <utility>

#include "octofold/error.h"

#include "support/error_of.h"
#include "support/random.h"

namespace octofold::plan {
namespace {

using config::WeightOnlyConfig;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

Gpu gpu_of(int compute_capability) { return as_target(kHopper, compute_capability); }

WeightOnlyProblem draw(test::Random& random) {
  constexpr DType kTypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kE4M3,
                              DType::kE5M2};
  constexpr Granularity kScales[] = {Granularity::kTensor, Granularity::kChannel,
                                     Granularity::kBlock1x128, Granularity::kBlock128x128};
  const auto below = [&](unsigned limit) { return static_cast<std::int64_t>(random() % limit); };
  WeightOnlyProblem problem{.rows = 1 + below(16),
                            .columns = 1 + below(20'000),
                            .depth = below(20'000),
                            .w = random() % 2 ? DType::kE4M3 : DType::kE5M2,
                            .x = kTypes[random() % 5],
                            .out = kTypes[random() % 3],
                            .w_scales = kScales[random() % 4],
                            .is_aligned = random() % 2 == 0,
                            .out_is_aligned = random() % 2 == 0};
  problem.x_blocks = is_fp8(problem.x) && random() % 2 == 0;
  if (problem.x == DType::kFloat16 || problem.x == DType::kBFloat16) {
    problem.transposed = random() % 2 == 0;
    if (random() % 2 == 0) problem.rows = 1 + below(20'000);
  }
  return problem;
}

// Whatever is asked for, on whatever GPU: there is a kernel, which fits.
TEST(PlanWeightOnlyTest, EachProblemHasAKernel) {
  test::Random random;
  for (int i = 0; i < 4000; ++i) {
    const WeightOnlyProblem problem = draw(random);
    for (const int capability : {75, 80, 86, 90}) {
      if (problem.x == DType::kBFloat16 && capability < 80) continue;
      const Gpu gpu = gpu_of(capability);
      const WeightOnlyPlan plan = plan_weight_only(problem, "gemm_weight_only", gpu);
      const WeightOnlyConfig& config = plan.config;
      EXPECT_EQ(config.invalid_reason(), nullptr) << describe(problem);
      ASSERT_EQ(plan.kernels.size(), 1u);
      EXPECT_EQ(plan.kernels[0].shared_bytes, config.shared_bytes());
      EXPECT_LE(config.shared_bytes(), gpu.shared_memory_per_block);
      EXPECT_EQ(plan.kernels[0].threads, config.threads());
      EXPECT_EQ(config.vectors, problem.is_aligned);
      EXPECT_EQ(config.store_vectors, problem.out_is_aligned);
      EXPECT_EQ(config.x_blocks, problem.x_blocks);
      // All copies of a stage are whole units.
      EXPECT_EQ(config.stage_bytes() % 16, 0);
    }
  }
}

TEST(PlanWeightOnlyTest, TilesCoverOut) {
  test::Random random;
  for (int i = 0; i < 200; ++i) {
    WeightOnlyProblem problem = draw(random);
    problem.rows = std::min<std::int64_t>(problem.rows, 700);
    problem.columns = std::min<std::int64_t>(problem.columns, 700);
    const WeightOnlyPlan plan = plan_weight_only(problem, "gemm_weight_only", kHopper);
    std::set<std::pair<long long, long long>> tiles;
    for (std::int64_t block = 0; block < plan.kernels[0].blocks; ++block) {
      const auto tile = config::weight_only_tile(plan.config, problem.rows, problem.columns, block);
      EXPECT_EQ(tile.row % plan.config.tile_rows, 0);
      EXPECT_EQ(tile.column % plan.config.tile_columns, 0);
      EXPECT_LT(tile.row, problem.rows);
      EXPECT_LT(tile.column, problem.columns);
      tiles.insert({tile.row, tile.column});
    }
    EXPECT_EQ(std::ssize(tiles), plan.kernels[0].blocks);
    EXPECT_GE(plan.kernels[0].blocks * plan.config.tile_rows * plan.config.tile_columns,
              problem.rows * problem.columns);
  }
}

// All multiprocessors have blocks, and these have many bytes on their way.
TEST(PlanWeightOnlyTest, FewRowsKeepTheMemoryBusy) {
  for (const std::int64_t size : {8192, 16384}) {
    for (const std::int64_t rows : {1, 2, 5, 8, 16}) {
      const WeightOnlyProblem problem{.rows = rows, .columns = size, .depth = size};
      const WeightOnlyPlan plan = plan_weight_only(problem, "gemv", kHopper);
      const WeightOnlyConfig& config = plan.config;
      EXPECT_GE(plan.kernels[0].blocks, 120);
      EXPECT_GE(config.tile_rows, rows);
      EXPECT_LT(config.tile_rows, 2 * rows);
      const std::int64_t resident =
          std::min<std::int64_t>((plan.kernels[0].blocks + 131) / 132,
                                 kHopper.shared_memory_per_block / config.shared_bytes());
      EXPECT_GE(resident * (config.stages - 1) * config.stage_bytes(), 48 * 1024);
    }
  }
}

TEST(PlanWeightOnlyTest, ManyRowsHaveLargeTiles) {
  for (const Granularity scales : {Granularity::kTensor, Granularity::kBlock128x128}) {
    const auto plan =
        plan_weight_only({.rows = 8192, .columns = 8192, .depth = 8192, .w_scales = scales},
                         "gemm_weight_only", kHopper);
    EXPECT_EQ(plan.config.tile_rows, 128);
    EXPECT_EQ(plan.config.tile_columns, 128);
    EXPECT_EQ(plan.kernels[0].blocks, 64 * 64);
  }
}

TEST(PlanWeightOnlyTest, ScalesOfTheGradientAreThoseOfItsDepth) {
  const auto config_of = [](Granularity scales) {
    return plan_weight_only(
               {.rows = 64, .columns = 512, .depth = 512, .transposed = true, .w_scales = scales},
               "gemm_weight_only_gradient", kHopper)
        .config;
  };
  EXPECT_FALSE(config_of(Granularity::kTensor).depth_factors);
  EXPECT_TRUE(config_of(Granularity::kChannel).depth_factors);
  EXPECT_TRUE(config_of(Granularity::kBlock1x128).depth_factors);
  EXPECT_FALSE(config_of(Granularity::kBlock1x128).w_blocks);
  EXPECT_TRUE(config_of(Granularity::kBlock128x128).w_blocks);
  EXPECT_FALSE(config_of(Granularity::kBlock128x128).depth_factors);
}

TEST(PlanWeightOnlyTest, SaysWhatAGpuLacks) {
  WeightOnlyProblem problem{.rows = 1, .columns = 64, .depth = 64};
  EXPECT_THAT(
      error_of([&] { plan_weight_only(problem, "gemv", gpu_of(75)); }, ErrorCode::kUnsupported),
      AllOf(HasSubstr("gemv: "), HasSubstr("bfloat16"), HasSubstr("8.0"), HasSubstr("got 7.5")));
  problem.x = DType::kFloat16;
  EXPECT_NO_THROW(plan_weight_only(problem, "gemv", gpu_of(75)));
  Gpu volta = kHopper;
  volta.compute_major = 7;
  EXPECT_THAT(error_of([&] { plan_weight_only(problem, "gemm_weight_only", volta); },
                       ErrorCode::kUnsupported),
              AllOf(HasSubstr("gemm_weight_only: "), HasSubstr("7.5")));
}

}  // namespace
}  // namespace octofold::plan
