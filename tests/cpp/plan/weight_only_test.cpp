#include "plan/weight_only.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "octofold/error.h"

#include "kernels/weight_only/config/config.h"
#include "plan/mma/planner.h"
#include "support/error_of.h"
#include "support/granularities.h"
#include "support/random.h"

namespace octofold::plan {
namespace {

using config::WeightOnlyConfig;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

Gpu gpu_of(int compute_capability) { return as_target(kHopper, compute_capability); }

const Gpu kAmpere = gpu_of(80);

const WeightOnlyWork& work_of(const WeightOnlyPlan& plan) {
  return std::get<WeightOnlyWork>(plan.config);
}

void expect_kernels(const WeightOnlyProblem& problem, const WeightOnlyWork& work, const Gpu& gpu,
                    const std::vector<KernelPlan>& kernels) {
  const WeightOnlyConfig& config = work.config;
  EXPECT_EQ(config.invalid_reason(), nullptr) << describe(problem);
  EXPECT_EQ(config.split, work.splits > 1);
  ASSERT_EQ(kernels.size(), config.split ? 2u : 1u);
  if (config.split) {
    EXPECT_TRUE(problem.has_workspace);
    EXPECT_LE(work.splits,
              config::weight_only_splits(problem.rows, problem.columns, problem.depth));
    EXPECT_EQ(config.of_combination().invalid_reason(), nullptr);
    EXPECT_EQ(config.of_combination().of_combination(), config.of_combination());
  }
  EXPECT_EQ(kernels[0].shared_bytes, config.shared_bytes());
  EXPECT_LE(config.shared_bytes(), gpu.shared_memory_per_block);
  EXPECT_EQ(kernels[0].threads, config.threads());
  EXPECT_EQ(config.vectors, problem.is_aligned);
  EXPECT_EQ(config.store_vectors, problem.out_is_aligned);
  EXPECT_EQ(config.x_blocks, problem.x_blocks);
  // All copies of a stage are whole units.
  EXPECT_EQ(config.stage_bytes() % 16, 0);
}

void expect_kernels(const WeightOnlyProblem& problem, const config::Sm90WeightOnlyConfig& config,
                    const Gpu& gpu, const std::vector<KernelPlan>& kernels) {
  EXPECT_EQ(gpu.compute_capability(), 90);
  EXPECT_TRUE(problem.fits_tma);
  EXPECT_GT(problem.rows, 16);
  EXPECT_EQ(config.invalid_reason(), nullptr) << describe(problem);
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].cluster_size, config.split_k);
  EXPECT_EQ(kernels[0].blocks % config.split_k, 0);
  EXPECT_EQ(kernels[0].shared_bytes, config.shared_bytes());
  // So many blocks at a time, with 1 KB of each for the system.
  EXPECT_LE(config.blocks_per_multiprocessor * (config.shared_bytes() + 1024), 228 * 1024);
  EXPECT_LE(config.blocks_per_multiprocessor * config.threads() * config.registers_at_start(),
            65536);
  EXPECT_LE(config.warpgroups * config.consumer_registers() + config.producer_registers(),
            (config.warpgroups + 1) * config.registers_at_start());
  EXPECT_EQ(config.store_vectors, problem.out_is_aligned);
}

WeightOnlyProblem draw(test::Random& random) {
  constexpr DType kTypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kE4M3,
                              DType::kE5M2};
  constexpr auto& kScales = test::kGranularities;
  const auto below = [&](unsigned limit) { return static_cast<std::int64_t>(random() % limit); };
  WeightOnlyProblem problem{.rows = 1 + below(16),
                            .columns = 1 + below(20'000),
                            .depth = below(20'000),
                            .w = random() % 2 ? DType::kE4M3 : DType::kE5M2,
                            .x = kTypes[random() % 5],
                            .out = kTypes[random() % 3],
                            .w_scales = kScales[random() % 4],
                            .is_aligned = random() % 2 == 0,
                            .out_is_aligned = random() % 2 == 0,
                            .has_workspace = random() % 2 == 0,
                            .fits_tma = random() % 2 == 0};
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
      const WeightOnlyPlan plan = plan_weight_only(problem, gpu);
      std::visit([&](const auto& choice) { expect_kernels(problem, choice, gpu, plan.kernels); },
                 plan.config);
    }
  }
}

TEST(PlanWeightOnlyTest, TilesCoverOut) {
  test::Random random;
  for (int i = 0; i < 200; ++i) {
    WeightOnlyProblem problem = draw(random);
    problem.rows = std::min<std::int64_t>(problem.rows, 700);
    problem.columns = std::min<std::int64_t>(problem.columns, 700);
    const WeightOnlyPlan plan = plan_weight_only(problem, kAmpere);
    const auto& [config, splits] = work_of(plan);
    const std::int64_t blocks = plan.kernels[0].blocks / splits;
    EXPECT_EQ(plan.kernels[0].blocks, blocks * splits);
    std::set<std::pair<long long, long long>> tiles;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const auto tile =
          config::weight_only_tile<long long>(config, problem.rows, problem.columns, block);
      EXPECT_EQ(tile.row % config.tile_rows, 0);
      EXPECT_EQ(tile.column % config.tile_columns, 0);
      EXPECT_LT(tile.row, problem.rows);
      EXPECT_LT(tile.column, problem.columns);
      tiles.insert({tile.row, tile.column});
    }
    EXPECT_EQ(std::ssize(tiles), blocks);
    EXPECT_GE(blocks * config.tile_rows * config.tile_columns, problem.rows * problem.columns);
  }
}

// All multiprocessors have blocks, and these have many bytes on their way.
TEST(PlanWeightOnlyTest, FewRowsKeepTheMemoryBusy) {
  for (const std::int64_t size : {8192, 16384}) {
    for (const std::int64_t rows : {1, 2, 5, 8, 16}) {
      const WeightOnlyProblem problem{.rows = rows, .columns = size, .depth = size};
      const WeightOnlyPlan plan = plan_weight_only(problem, kHopper);
      const WeightOnlyConfig& config = work_of(plan).config;
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
    const auto plan = plan_weight_only(
        {.rows = 8192, .columns = 8192, .depth = 8192, .w_scales = scales}, kAmpere);
    const WeightOnlyConfig& config = work_of(plan).config;
    EXPECT_GE(config.tile_rows * config.tile_columns, 64 * 128);
  }
}

// If tiles fill a GPU twice, operands are decoded ahead; weights with factors along the depth, some
// tens of rows, and x of other types have the other kernel.
TEST(PlanWeightOnlyTest, ManyRowsAreDecodedAhead) {
  const WeightOnlyProblem many{
      .rows = 4096, .columns = 4096, .depth = 7168, .w_scales = Granularity::kBlock128x128};
  for (const int capability : {80, 86}) {
    const auto is_ahead = [&](const WeightOnlyProblem& problem) {
      const auto plan = plan_weight_only(problem, gpu_of(capability));
      return work_of(plan).config.ahead;
    };
    EXPECT_TRUE(is_ahead(many)) << capability;
    WeightOnlyProblem problem = many;
    problem.transposed = true;
    EXPECT_TRUE(is_ahead(problem)) << capability;
    problem.w_scales = Granularity::kChannel;
    EXPECT_FALSE(is_ahead(problem)) << capability;
    problem = many;
    problem.rows = 64;
    EXPECT_FALSE(is_ahead(problem)) << capability;
    problem.x = DType::kFloat32;
    problem.rows = 16;
    EXPECT_FALSE(is_ahead(problem)) << capability;
  }
}

// They are among the candidates wherever the tile fits, beside those whose blocks share the depth.
TEST(PlanWeightOnlyTest, DecodingAheadIsACandidateBesideSharedDepth) {
  const auto candidates = mma::warp_weight_only_candidates(
      contiguous({.rows = 300, .columns = 392, .depth = 1040}), gpu_of(80));
  const auto count = [&](auto&& has) { return std::ranges::count_if(candidates, has); };
  EXPECT_GT(count([](const WeightOnlyWork& work) { return work.splits > 1; }), 0);
  EXPECT_GT(count([](const WeightOnlyWork& work) { return work.config.ahead; }), 0);
}

// Some tens of rows have few tiles of many columns: blocks share the depth, where they may.
TEST(PlanWeightOnlyTest, BlocksShareTheDepthOfSomeRows) {
  WeightOnlyProblem problem{.rows = 64, .columns = 4096, .depth = 7168, .has_workspace = true};
  const WeightOnlyPlan plan = plan_weight_only(problem, kAmpere);
  EXPECT_GT(work_of(plan).splits, 1);
  EXPECT_GE(plan.kernels[0].blocks, 120);
  EXPECT_EQ(plan.kernels[1].blocks, 64 * 1024 / work_of(plan).config.of_combination().threads());
  problem.has_workspace = false;
  EXPECT_EQ(work_of(plan_weight_only(problem, kAmpere)).splits, 1);
}

TEST(PlanWeightOnlyTest, SplitsLeaveRoomForAWorkspace) {
  EXPECT_EQ(config::weight_only_splits(16, 8192, 8192), 1);
  EXPECT_EQ(config::weight_only_splits(17, 8192, 8192), 4);
  EXPECT_EQ(config::weight_only_splits(64, 24576, 1536), 2);
  EXPECT_EQ(config::weight_only_splits(64, 8192, 1023), 1);
  EXPECT_EQ(config::weight_only_splits(4096, 4096, 8192), 1);
  constexpr long long kMost = std::numeric_limits<long long>::max();
  EXPECT_EQ(config::weight_only_workspace_elements(kMost, kMost, kMost), 0);
  EXPECT_EQ(config::weight_only_workspace_elements(64, 4096, 7168), 4 * 64 * 4096);
}

TEST(PlanWeightOnlyTest, ScalesOfTheGradientAreThoseOfItsDepth) {
  const auto config_of = [](Granularity scales) {
    return work_of(plan_weight_only({.rows = 64,
                                     .columns = 512,
                                     .depth = 512,
                                     .transposed = true,
                                     .w_scales = scales},
                                    kAmpere))
        .config;
  };
  EXPECT_FALSE(config_of(Granularity::kTensor).depth_factors);
  EXPECT_TRUE(config_of(Granularity::kChannel).depth_factors);
  EXPECT_TRUE(config_of(Granularity::kBlock1x128).depth_factors);
  EXPECT_FALSE(config_of(Granularity::kBlock1x128).w_blocks);
  EXPECT_TRUE(config_of(Granularity::kBlock128x128).w_blocks);
  EXPECT_FALSE(config_of(Granularity::kBlock128x128).depth_factors);
}

// Hopper's own kernel has more than 16 rows of what TMA can address; at least half of the
// multiprocessors have work.
TEST(PlanWeightOnlyTest, HopperHasAKernelOfItsOwn) {
  for (const std::int64_t rows : {17, 32, 64, 128, 1024, 4096}) {
    for (const Granularity scales : test::kGranularities) {
      for (const bool transposed : {false, true}) {
        WeightOnlyProblem problem{.rows = rows,
                                  .columns = 4096,
                                  .depth = 7168,
                                  .transposed = transposed,
                                  .w_scales = scales};
        const WeightOnlyPlan plan = plan_weight_only(problem, kHopper);
        const auto* config = std::get_if<config::Sm90WeightOnlyConfig>(&plan.config);
        ASSERT_NE(config, nullptr);
        EXPECT_EQ(config->depth_factors, transposed && (scales == Granularity::kChannel ||
                                                        scales == Granularity::kBlock1x128));
        EXPECT_GE(plan.kernels[0].blocks, 64) << rows << " " << describe(*config);
        problem.fits_tma = false;
        EXPECT_TRUE(
            std::holds_alternative<WeightOnlyWork>(plan_weight_only(problem, kHopper).config));
      }
    }
  }
}

// Products whose sizes int cannot count have the kernel of warps.
TEST(PlanWeightOnlyTest, HopperCountsInInt) {
  WeightOnlyProblem problem{.rows = 64, .columns = std::int64_t{1} << 31, .depth = 128};
  EXPECT_TRUE(std::holds_alternative<WeightOnlyWork>(plan_weight_only(problem, kHopper).config));
}

// No two candidates have a name in common.
TEST(PlanWeightOnlyTest, NamesTellCandidatesApart) {
  for (const Gpu& gpu : {kAmpere, kHopper}) {
    std::set<std::string> names;
    const auto candidates = weight_only_candidates(
        {.rows = 100, .columns = 4096, .depth = 7168, .has_workspace = true}, gpu);
    for (const auto& [name, choice] : candidates) names.insert(name);
    EXPECT_EQ(names.size(), candidates.size());
  }
}

TEST(PlanWeightOnlyTest, SaysWhatAGpuLacks) {
  WeightOnlyProblem problem{.rows = 1, .columns = 64, .depth = 64};
  EXPECT_THAT(error_of([&] { plan_weight_only(problem, gpu_of(75)); }, ErrorCode::kUnsupported),
              AllOf(HasSubstr("gemm_weight_only: "), HasSubstr("bfloat16"), HasSubstr("8.0"),
                    HasSubstr("got 7.5")));
  problem.x = DType::kFloat16;
  EXPECT_NO_THROW(plan_weight_only(problem, gpu_of(75)));
  Gpu volta = kHopper;
  volta.compute_major = 7;
  EXPECT_THAT(error_of([&] { plan_weight_only(problem, volta); }, ErrorCode::kUnsupported),
              AllOf(HasSubstr("gemm_weight_only: "), HasSubstr("7.5")));
}

}  // namespace
}  // namespace octofold::plan
