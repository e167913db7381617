#include "plan/weight_only.h"

#include "kernels/weight_only/config/config.h"
#include "plan/mma/planner.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::WeightOnlyConfig;
using config::Work;

Gpu target_of(int compute_capability) { return as_target(kHopper, compute_capability); }

const Gpu kAmpere = target_of(80);

const WeightOnlyWork& work_of(const WeightOnlyPlan& plan) {
  return std::get<WeightOnlyWork>(plan.config);
}

// A block for each tile that is expected, and fewer than there are others behind them.
void expect_blocks_of_groups(const WeightOnlyProblem& problem, const WeightOnlyConfig& config,
                             std::int64_t blocks) {
  EXPECT_EQ(config.gathered, problem.gathered);
  const std::int64_t columns = config::ceil_divide(problem.columns, config.tile_columns);
  const RowTiles tiles = row_tiles(problem, config.tile_rows);
  EXPECT_GE(blocks, std::min(tiles.most, static_cast<std::int64_t>(tiles.expected)) * columns);
  EXPECT_LE(blocks, tiles.most * columns);
  EXPECT_GE(blocks, 1);
}

void expect_kernels(const WeightOnlyProblem& problem, const WeightOnlyWork& work, const Gpu& gpu,
                    const std::vector<KernelPlan>& kernels) {
  const WeightOnlyConfig& config = work.config;
  EXPECT_EQ(config.work, problem.work);
  if (config::has_groups(problem.work)) {
    EXPECT_EQ(work.splits, 1);
    expect_blocks_of_groups(problem, config, kernels[0].blocks);
  }
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
  EXPECT_EQ(config.stage_bytes() % 16, 0);
}

void expect_kernels(const WeightOnlyProblem& problem, const config::Sm90WeightOnlyConfig& config,
                    const Gpu& gpu, const std::vector<KernelPlan>& kernels) {
  EXPECT_EQ(gpu.compute_capability(), 90);
  EXPECT_TRUE(problem.fits_tma);
  EXPECT_GE(expected_rows(problem), 17);
  EXPECT_FALSE(problem.gathered);
  EXPECT_EQ(config.work, problem.work);
  if (config::has_groups(problem.work)) {
    EXPECT_LE(kernels[0].blocks, gpu.multiprocessors * config.blocks_per_multiprocessor);
  }
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

WeightOnlyProblem draw_dense(test::Random& random) {
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

WeightOnlyProblem draw(test::Random& random) {
  WeightOnlyProblem problem = draw_dense(random);
  if (size_of(problem.x) != 2 || random() % 2) return problem;
  problem.work = random() % 2 == 0 ? Work::kGroupedRows : Work::kMaskedRows;
  problem.groups = 1 + static_cast<std::int64_t>(random() % 300);
  problem.has_workspace = false;
  if (problem.work == Work::kGroupedRows) {
    problem.gathered = random() % 2 == 0;
  } else {
    problem.expected = static_cast<std::int64_t>(random() % as_size(problem.rows + 1));
  }
  return problem;
}

// Whatever is asked for, on whatever GPU: there is a kernel, which fits.
TEST(PlanWeightOnlyTest, EachProblemHasAKernel) {
  test::Random random;
  for (int i = 0; i < 4000; ++i) {
    const WeightOnlyProblem problem = draw(random);
    for (const int capability : {75, 80, 86, 89, 90}) {
      if (problem.x == DType::kBFloat16 && capability < 80) continue;
      const Gpu gpu = target_of(capability);
      const WeightOnlyPlan plan = plan_weight_only(problem, gpu);
      std::visit([&](const auto& choice) { expect_kernels(problem, choice, gpu, plan.kernels); },
                 plan.config);
    }
  }
}

TEST(PlanWeightOnlyTest, TilesCoverOut) {
  test::Random random;
  for (int i = 0; i < 200; ++i) {
    WeightOnlyProblem problem = draw_dense(random);
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
      const auto plan = plan_weight_only(problem, target_of(capability));
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
      as_allocated({.rows = 300, .columns = 392, .depth = 1040}), target_of(80));
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
  // It counts in int.
  const WeightOnlyProblem large{.rows = 64, .columns = std::int64_t{1} << 31, .depth = 128};
  EXPECT_TRUE(std::holds_alternative<WeightOnlyWork>(plan_weight_only(large, kHopper).config));
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

// How batch-invariant products are planned: whatever may be chosen sums a row alike, however many
// rows there are.
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

WeightOnlyProblem draw_invariant(test::Random& random) {
  WeightOnlyProblem problem = draw(random);
  problem.depth = random() % 2 == 0 ? 16 * (1 + problem.depth / 16) : 1 + problem.depth;
  problem.out_is_aligned = problem.batch_invariant = true;
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
    WeightOnlyProblem problem = draw_invariant(random);
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

// ---- Groups of rows: by the tiles that groups are expected to have.

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
          std::int64_t count = 0;
          for (const std::int64_t size : sizes) count += config::ceil_divide(size, tile_rows);
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
    EXPECT_LE(config.tile_rows, 16) << describe(config);
    const RowTiles tiles = row_tiles(problem, config.tile_rows);
    EXPECT_LE(tiles.expected, 1.2 * tiles.matrices) << describe(config);
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
  EXPECT_GE(config.tile_rows * config.tile_columns, 64 * 128) << describe(config);
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
  EXPECT_THAT(describe(of_rows(64, 128)), HasSubstr("groups of rows, groups 128"));
  EXPECT_THAT(describe(WeightOnlyProblem{.rows = 3, .columns = 4, .depth = 5}),
              Not(HasSubstr("groups")));
}

}  // namespace
}  // namespace octofold::plan
