#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "core/format.h"
#include "core/scale_layout.h"
#include "kernels/sm90/config/checks.h"
#include "plan/sm90/cost.h"
#include "plan/sm90/planner.h"
#include "plan/tma.h"

namespace octofold::plan::sm90 {
namespace {

using config::Sm90WeightOnlyConfig;

// Fewer rows leave wgmma's operands nothing to share: warps that multiply by themselves are level.
constexpr std::int64_t kLeastRows = 17;

struct WeightOnlyTiling {
  int columns, warpgroups, depth_groups;
};
constexpr WeightOnlyTiling kWeightOnlyTilings[] = {
    {64, 1, 1}, {64, 1, 2}, {64, 1, 3}, {128, 2, 1}, {128, 2, 2}, {192, 3, 1}, {256, 2, 1}};
constexpr int kSplits[] = {1, 2, 3, 4, 8};
constexpr int kMostBlocks = 3;  // to a multiprocessor

// Rows of tiles: those that hold all, or where there are many. Each makes other kernels, which
// take a second to compile where they are met for the first time: so there are few.
constexpr int kFewRowsOfTile[] = {32, 64, 96, 128};
constexpr int kManyRowsOfTile[] = {96, 128, 160, 176, 192, 208, 256};

constexpr int kRowsOfTileOfGroups[] = {32, 64, 96, 128, 176, 256};

// The tiles of fewer rows, for problems where this kernel has to take fewer too.
constexpr int kFewestRowsOfTile[] = {8, 16};

// Numbers of rows, of all magnitudes that matter.
constexpr std::int64_t kRowsOfAllMagnitudes[] = {8, 64, 512, 4096};

std::vector<int> rows_of_tiles(const WeightOnlyProblem& problem) {
  std::vector<int> all;
  const std::span<const int> fewest =
      problem.batch_invariant ? std::span<const int>(kFewestRowsOfTile) : std::span<const int>();
  if (config::has_groups(problem.work)) {
    const double rows = expected_rows(problem);
    for (const int of_tile : fewest) {
      if (rows <= 2 * of_tile) all.push_back(of_tile);
    }
    for (const int of_tile : kRowsOfTileOfGroups) {
      if (of_tile <= 2 * rows) all.push_back(of_tile);
    }
    return all;
  }
  const std::int64_t rows = problem.rows;
  for (const int of_tile : fewest) {
    if (rows <= of_tile) return {of_tile};
  }
  for (const int of_tile : kFewRowsOfTile) {
    if (rows <= of_tile) return {of_tile};
  }
  for (const int of_tile : kManyRowsOfTile) {
    const std::int64_t computed = core::ceil_divide(rows, of_tile) * of_tile;
    if (4 * computed <= 5 * rows) all.push_back(of_tile);
  }
  return all;
}

// Sets as many stages as shared memory holds, and as there are steps. True if these are enough.
bool fit_stages(Sm90WeightOnlyConfig& config, std::int64_t steps) {
  const int memory = config::shared_memory_of_block(config.blocks_per_multiprocessor);
  constexpr int kDeepestRing = 12;
  const int least = 2 * config.depth_groups;
  int stages = static_cast<int>(std::clamp<std::int64_t>(steps, least, kDeepestRing));
  for (stages -= stages % config.depth_groups; stages >= least; stages -= config.depth_groups) {
    config.stages = stages;
    if (config.shared_bytes() <= memory) return true;
  }
  return false;
}

// The number of tiles; of groups, those that are expected.
std::int64_t tiles_of(const WeightOnlyProblem& problem, const Sm90WeightOnlyConfig& config) {
  const double tiles = row_tiles(problem, config.tile_rows).expected;
  return std::max<std::int64_t>(std::llround(tiles), 1) *
         core::ceil_divide(problem.columns, config.tile_columns);
}

// True if the kernel can have the problem, whatever its rows.
bool is_possible(const WeightOnlyProblem& problem) {
  const bool is_half = problem.x == DType::kFloat16 || problem.x == DType::kBFloat16;
  if (!is_half || !problem.fits_tma ||
      (problem.out != problem.x && problem.out != DType::kFloat32)) {
    return false;
  }
  // Tiles, and TMA, count in int.
  constexpr std::int64_t kMostCounted = std::numeric_limits<int>::max() - 4096;
  if (std::max({problem.rows, problem.columns, problem.depth}) > kMostCounted) return false;
  // A row alone fits TMA whatever its length, others of that length do not.
  if (problem.batch_invariant && problem.depth * size_of(problem.x) % kTmaAlignment != 0) {
    return false;
  }
  // TMA reads no rows that lie anywhere, and no zeros behind a group's part of the depth.
  const bool has_groups = config::has_groups(problem.work);
  return !problem.gathered &&
         !(has_groups && problem.transposed && problem.depth % kScaleBlock != 0);
}

// All whose tiles so many blocks share.
std::vector<Sm90WeightOnlyConfig> candidates_of(const WeightOnlyProblem& problem, const Gpu& gpu,
                                                std::span<const int> splits) {
  std::vector<Sm90WeightOnlyConfig> candidates;
  const bool has_groups = config::has_groups(problem.work);
  const bool by_depth =
      problem.w_scales == Granularity::kChannel || problem.w_scales == Granularity::kBlock1x128;
  Sm90WeightOnlyConfig config{.w = problem.w,
                              .x = problem.x,
                              .out = problem.out,
                              .transposed = problem.transposed,
                              .w_blocks = problem.transposed
                                              ? problem.w_scales == Granularity::kBlock128x128
                                              : varies_along_k(problem.w_scales),
                              .depth_factors = problem.transposed && by_depth,
                              .work = problem.work,
                              .store_vectors = problem.out_is_aligned};
  const std::int64_t steps = core::ceil_divide(problem.depth, std::int64_t{kScaleBlock});
  for (const auto& [columns, warpgroups, depth_groups] : kWeightOnlyTilings) {
    config.tile_columns = columns;
    config.warpgroups = warpgroups;
    config.depth_groups = depth_groups;
    // Groups of warpgroups add their sums, each of which rounds: none where rows are summed alike.
    if ((has_groups || problem.batch_invariant) && depth_groups > 1) continue;
    for (const int rows : rows_of_tiles(problem)) {
      config.tile_rows = rows;
      const std::int64_t tiles = tiles_of(problem, config);
      for (const int split : splits) {
        config.split_k = split;
        if (split > 1 && steps < 2 * split * depth_groups) continue;
        // Blocks that share a tile have one each.
        if (split > 1 && !problem.batch_invariant && tiles * split > 3 * gpu.multiprocessors) {
          continue;
        }
        for (int blocks = 1; blocks <= kMostBlocks; ++blocks) {
          config.blocks_per_multiprocessor = blocks;
          if (blocks > 1 && tiles <= clusters_at_once(split, blocks - 1, gpu)) break;
          // Tiles of many rows have no registers for partial sums, others do as well without.
          config.unit_sums =
              config.w_blocks && (problem.batch_invariant || !config.fits_partial_sums());
          if (fit_stages(config, core::ceil_divide(steps, std::int64_t{split})) &&
              config.invalid_reason() == nullptr) {
            candidates.push_back(config);
          }
        }
      }
    }
  }
  return candidates;
}

std::string name_of(const Sm90WeightOnlyConfig& config) {
  return core::format("sm90.{}x{}.w{}x{}.c{}.b{}", config.tile_columns, config.tile_rows,
                      config.warpgroups, config.depth_groups, config.split_k,
                      config.blocks_per_multiprocessor);
}

// Fitted to what all configurations took for 50 products drawn at random on an H200
// (docs/notes/weight-only.md).
double expected_clocks(const WeightOnlyProblem& problem, const Sm90WeightOnlyConfig& config,
                       const Gpu& gpu) {
  // Rates of a multiprocessor in a clock: products of tensor cores, bytes that arrive, bytes of
  // memory. Clocks of a warpgroup for a stage of one sub-tile, and besides for scales of blocks,
  // and these for each row. Of a round of tiles, and what a warpgroup takes to store 128 results;
  // of the launch, and of blocks that share a tile.
  constexpr double kProducts = 2130, kArriving = 77, kFromMemory = 15.7;
  constexpr double kDecode = 330, kScales = 230, kScalesOfRow = 0.45;
  constexpr double kRound = 3330, kStored = 31, kStart = 2900, kShare = 745, kShareSum = 14;
  // They hide behind one another in part.
  constexpr double kHidden = 1.4;
  // With fewer stages ahead than these, for each group, bytes arrive more slowly.
  constexpr double kStagesWanted = 3.12, kLate = 1;
  const std::int64_t tiles = tiles_of(problem, config);
  const std::int64_t at_once =
      clusters_at_once(config.split_k, config.blocks_per_multiprocessor, gpu);
  const auto rounds = static_cast<double>(core::ceil_divide(tiles, at_once));
  const auto beside = static_cast<double>(std::min<std::int64_t>(
      config.blocks_per_multiprocessor,
      core::ceil_divide(tiles * config.split_k, std::int64_t{gpu.multiprocessors})));
  const auto steps = static_cast<double>(core::ceil_divide(
      core::ceil_divide(problem.depth, std::int64_t{kScaleBlock}), std::int64_t{config.split_k}));
  const double rows = config.tile_rows, cells = rows * config.tile_columns;
  const double multiplied = beside * cells * kScaleBlock / kProducts;
  const double scaled = config.w_blocks ? kScales + kScalesOfRow * rows : 0;
  const double decoded = config.sub_tiles() * (kDecode + scaled) / config.depth_groups;
  const double ahead =
      std::min(static_cast<double>(config.stages) / config.depth_groups, kStagesWanted);
  const double arrived = beside * (config.w_bytes() + 2 * config.x_half_bytes()) / kArriving *
                         (1 + kLate * (kStagesWanted - ahead));
  const double stage = std::pow(
      std::pow(multiplied, kHidden) + std::pow(decoded, kHidden) + std::pow(arrived, kHidden),
      1 / kHidden);
  const double stored = kStored * cells / 128 / config.warpgroups;
  const double worked = rounds * (steps * stage + kRound + stored);
  const double matrices = row_tiles(problem, config.tile_rows).matrices;
  const double read = matrices * static_cast<double>(problem.columns) *
                      static_cast<double>(problem.depth) / gpu.multiprocessors / kFromMemory;
  const double shared = config.split_k > 1 ? kShare + kShareSum * cells / 64 : 0;
  return std::max(worked, read) + kStart + rounds * shared;
}

// How many blocks share a tile, whatever its rows: those with which few rows, some and many take
// the least time together, of each its share of what it takes with the best.
int invariant_split(WeightOnlyProblem problem, const Gpu& gpu) {
  const auto cost_of = [&](int split) {
    double cost = 0;
    for (const std::int64_t rows : kRowsOfAllMagnitudes) {
      problem.rows = rows;
      double least = std::numeric_limits<double>::infinity();
      for (const auto& config : candidates_of(problem, gpu, {&split, 1})) {
        least = std::min(least, expected_clocks(problem, config, gpu));
      }
      cost += std::log(least);
    }
    return cost;
  };
  return *std::ranges::min_element(kSplits, {}, cost_of);
}

std::vector<Sm90WeightOnlyConfig> candidates_of(const WeightOnlyProblem& problem, const Gpu& gpu) {
  if (!is_possible(problem)) return {};
  const bool has_groups = config::has_groups(problem.work);
  if (problem.batch_invariant) {
    const int split = has_groups ? 1 : invariant_split(problem, gpu);
    return candidates_of(problem, gpu, {&split, 1});
  }
  if (expected_rows(problem) < kLeastRows) return {};
  return candidates_of(problem, gpu, has_groups ? std::span(kSplits).first(1) : kSplits);
}

class WeightOnly final : public WeightOnlyPlanner {
 public:
  Candidates candidates(const WeightOnlyProblem& problem, const Gpu& gpu) const override {
    Candidates candidates;
    for (const Sm90WeightOnlyConfig& config : candidates_of(problem, gpu)) {
      candidates.push_back({name_of(config), config});
    }
    return candidates;
  }

  Reckonings reckon(const WeightOnlyProblem& problem, const Gpu& gpu) const override {
    Reckonings all;
    for (const Sm90WeightOnlyConfig& config : candidates_of(problem, gpu)) {
      all.push_back({config, expected_clocks(problem, config, gpu)});
    }
    return all;
  }

  std::vector<KernelPlan> kernels(const WeightOnlyProblem& problem, const WeightOnlyChoice& choice,
                                  const Gpu& gpu) const override {
    const auto& config = std::get<Sm90WeightOnlyConfig>(choice);
    // Groups may have more tiles than are expected: blocks stay until all are done.
    std::int64_t blocks = config.has_groups()
                              ? row_tiles(problem, config.tile_rows).most *
                                    core::ceil_divide(problem.columns, config.tile_columns)
                              : tiles_of(problem, config) * config.split_k;
    if (config.split_k == 1 && config.depth_groups == 1) {
      blocks = std::min<std::int64_t>(
          blocks, std::int64_t{gpu.multiprocessors} * config.blocks_per_multiprocessor);
    }
    KernelPlan kernel =
        kernel_plan(operation_of(problem), config.kHeader, config.kKernel, config, blocks);
    kernel.cluster_size = config.split_k;
    kernel.shared_bytes = config.shared_bytes();
    return {kernel};
  }
};

}  // namespace

const WeightOnlyPlanner& weight_only_planner() {
  static const WeightOnly planner;
  return planner;
}

}  // namespace octofold::plan::sm90
