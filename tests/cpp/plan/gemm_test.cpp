// The GEMM planner over thousands of problems, and the scheduler: each tile once.
#include "plan/gemm.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <set>
#include <vector>

#include "octofold/error.h"

#include "kernels/config/tile_schedule.h"

namespace octofold::plan {
namespace {

using config::Addend;
using config::GemmConfig;
using config::GemmScaling;
using config::OperandLoad;
using config::OutputStore;

template <typename T>
T pick(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random)];
}

// Sizes of all magnitudes, ragged and round ones.
std::int64_t random_size(std::mt19937& random) {
  const int bits = std::uniform_int_distribution(0, 17)(random);
  const std::int64_t size = std::uniform_int_distribution<std::int64_t>(1, 1ll << bits)(random);
  return random() % 2 == 0 ? size : (size + 127) / 128 * 128;
}

GemmProblem random_problem(std::mt19937& random) {
  GemmProblem problem{.m = random_size(random),
                      .n = random_size(random),
                      .k = random() % 20 == 0 ? 0 : random_size(random),
                      .a = pick(random, {DType::kE4M3, DType::kE5M2}),
                      .b = pick(random, {DType::kE4M3, DType::kE5M2}),
                      .out = pick(random, {DType::kBFloat16, DType::kFloat16, DType::kFloat32}),
                      .scaling = pick(random, {GemmScaling::kTensor, GemmScaling::kChannel,
                                               GemmScaling::kBlock, GemmScaling::kBlockByBlock}),
                      .c = pick(random, {Addend::kNone, Addend::kOutputType, Addend::kFloat32}),
                      .bias = pick(random, {Addend::kNone, Addend::kOutputType, Addend::kFloat32}),
                      .operands_fit_tma = random() % 4 != 0,
                      .output_fits_tma = random() % 4 != 0};
  problem.fast_accumulation = !config::has_block_scales(problem.scaling) && random() % 2 == 0;
  return problem;
}

config::TileSchedule tiles_of(const GemmConfig& config, const GemmProblem& problem) {
  return config::tile_schedule(static_cast<int>(problem.m), static_cast<int>(problem.n),
                               config.cluster_tile_m(), config.cluster_tile_n(),
                               config.raster_rows);
}

TEST(GemmPlanTest, EveryPlanOfRandomProblemsIsValid) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 20000; ++i) {
    const GemmProblem problem = random_problem(random);
    const GemmPlan plan = plan_gemm(problem, kHopper);
    const GemmConfig& config = plan.config;
    SCOPED_TRACE(testing::Message()
                 << problem.m << "×" << problem.n << "×" << problem.k << ": " << describe(config));
    ASSERT_EQ(config.invalid_reason(), nullptr) << config.invalid_reason();
    EXPECT_EQ(config.a, problem.a);
    EXPECT_EQ(config.b, problem.b);
    EXPECT_EQ(config.out, problem.out);
    EXPECT_EQ(config.scaling, problem.scaling);
    EXPECT_EQ(config.c, problem.c);
    EXPECT_EQ(config.bias, problem.bias);
    EXPECT_EQ(config.promote, !problem.fast_accumulation);
    // What TMA cannot address it is not given.
    EXPECT_EQ(config.load == OperandLoad::kThreads, !problem.operands_fit_tma);
    EXPECT_TRUE(problem.output_fits_tma || config.store == OutputStore::kDirect);
    EXPECT_GT(plan.blocks, 0);
    EXPECT_LE(plan.blocks, kHopper.multiprocessors);
    EXPECT_EQ(plan.blocks % config.cluster_size(), 0);
    EXPECT_LE(config.threads() * 32, 65536);
  }
}

TEST(GemmPlanTest, TheSameProblemHasTheSamePlan) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 100; ++i) {
    const GemmProblem problem = random_problem(random);
    EXPECT_EQ(plan_gemm(problem, kHopper).config, plan_gemm(problem, kHopper).config);
  }
}

TEST(GemmPlanTest, APlanIsOneOfThoseListed) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 2000; ++i) {
    const GemmProblem problem = random_problem(random);
    const std::vector<GemmConfig> listed = all_gemm_configs(problem);
    EXPECT_NE(std::ranges::find(listed, plan_gemm(problem, kHopper).config), listed.end());
  }
}

TEST(GemmPlanTest, FillsTheMultiprocessors) {
  const auto tiles = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    const GemmProblem problem{.m = m, .n = n, .k = k};
    const GemmConfig config = plan_gemm(problem, kHopper).config;
    return tiles_of(config, problem).count() * config.cluster_size();
  };
  EXPECT_GE(tiles(1, 2112, 7168), 100);      // narrow tiles for few rows
  EXPECT_LE(tiles(1024, 2112, 7168), 132);   // one wave, where tiles of 128×128 would take two
  EXPECT_LE(tiles(4096, 7168, 16384), 924);  // large tiles where there is work for all: 7 waves
}

TEST(GemmPlanTest, RefusesWhatKernelsCannotCount) {
  const auto refuses = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    try {
      plan_gemm({.m = m, .n = n, .k = k}, kHopper);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kUnsupported;
    }
    return false;
  };
  EXPECT_TRUE(refuses(1ll << 31, 16, 16));
  EXPECT_TRUE(refuses(16, 1ll << 40, 16));
  EXPECT_TRUE(refuses(16, 16, 1ll << 31));
  EXPECT_TRUE(refuses(1ll << 30, 1ll << 30, 16));
  EXPECT_FALSE(refuses(1ll << 30, 64, 16));
}

TEST(GemmPlanTest, NamesWhatAnOlderGpuIsAndWhatThereIsInstead) {
  try {
    plan_gemm({.m = 16, .n = 16, .k = 16},
              {.compute_major = 8, .compute_minor = 6, .multiprocessors = 84});
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("8.6"), message.npos) << message;
    EXPECT_NE(message.find("CPU backend"), message.npos) << message;
  }
}

TEST(TileScheduleTest, EachTileComesOnce) {
  for (int tiles_m = 1; tiles_m <= 20; ++tiles_m) {
    for (int tiles_n = 1; tiles_n <= 20; ++tiles_n) {
      for (const int raster_rows : {1, 2, 3, 8, 16}) {
        const config::TileSchedule schedule{tiles_m, tiles_n, raster_rows};
        std::set<std::pair<int, int>> seen;
        for (int i = 0; i < schedule.count(); ++i) {
          const config::TileCoordinate tile = schedule.at(i);
          ASSERT_TRUE(tile.m >= 0 && tile.m < tiles_m && tile.n >= 0 && tile.n < tiles_n);
          ASSERT_TRUE(seen.emplace(tile.m, tile.n).second) << tile.m << ", " << tile.n;
        }
        EXPECT_EQ(std::ssize(seen), schedule.count());
      }
    }
  }
}

TEST(TileScheduleTest, BlocksTogetherCoverEachElementOfDOnce) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 200; ++i) {
    GemmProblem problem = random_problem(random);
    problem.m = problem.m % 3000 + 1;
    problem.n = problem.n % 3000 + 1;
    const GemmPlan plan = plan_gemm(problem, kHopper);
    const GemmConfig& config = plan.config;
    const config::TileSchedule tiles = tiles_of(config, problem);
    std::set<std::pair<int, int>> seen;
    // What kernels/gemm/tile_walk.h does, block by block.
    for (int block = 0; block < plan.blocks; ++block) {
      const int rank = block % config.cluster_size();
      for (int index = block / config.cluster_size(); index < tiles.count();
           index += plan.blocks / config.cluster_size()) {
        const config::TileCoordinate tile = tiles.at(index);
        const int m = tile.m * config.cluster_m + (config.cluster_m > 1 ? rank : 0);
        const int n = tile.n * config.cluster_n + (config.cluster_n > 1 ? rank : 0);
        ASSERT_TRUE(seen.emplace(m, n).second);
      }
    }
    for (int m = 0; m * config.tile_m < problem.m; ++m) {
      for (int n = 0; n * config.tile_n < problem.n; ++n) ASSERT_TRUE(seen.contains({m, n}));
    }
  }
}

}  // namespace
}  // namespace octofold::plan
