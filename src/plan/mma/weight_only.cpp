#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "core/scale_layout.h"
#include "kernels/weight_only/config/config.h"
#include "plan/mma/planner.h"

namespace octofold::plan::mma {
namespace {

using config::WeightOnlyConfig;

struct Tiling {
  int columns, rows;
  int warps_columns, warps_rows, warps_depth;
};

// Few rows: warps share the depth, so that a block takes few columns and there are many blocks. The
// more rows there are, the more of the bytes that a block reads are x's, which wants more columns.
// Many rows: warps share the tile.
constexpr Tiling kFewRows[] = {{16, 0, 1, 1, 8}, {16, 0, 1, 1, 4}, {16, 0, 1, 1, 2},
                               {32, 0, 1, 1, 8}, {32, 0, 1, 1, 4}, {32, 0, 1, 1, 2},
                               {64, 0, 2, 1, 4}, {64, 0, 2, 1, 2}, {64, 0, 1, 1, 4}};
constexpr Tiling kManyRows[] = {
    {64, 32, 2, 1, 4},  {64, 32, 2, 1, 2},  {128, 32, 4, 1, 2},  {64, 64, 2, 2, 2},
    {64, 64, 2, 1, 4},  {64, 64, 2, 1, 2},  {128, 64, 4, 2, 1},  {128, 64, 4, 1, 2},
    {128, 64, 4, 1, 1}, {256, 64, 8, 1, 1}, {64, 64, 2, 2, 1},   {64, 128, 2, 2, 1},
    {128, 96, 2, 2, 1}, {256, 96, 4, 2, 1}, {128, 128, 4, 2, 1}, {128, 128, 2, 4, 1}};

// Many rows, decoded ahead: warps of 64 columns and 64 rows, for which the assembler has registers
// for 8.0 to 8.7 only, or 48 rows. Tiles of two or eight such warps are not faster anywhere.
constexpr Tiling kAhead{128, 96, 2, 2, 1}, kAheadOfAmpere{128, 128, 2, 2, 1};

// How a row is summed is decided by how many warps and blocks share the depth and by decoding
// ahead, not by the tile. Two warps have tiles for few rows and for many, of which 7.5 fits one.
constexpr int kInvariantDepth = 2;
constexpr Tiling kSmall{64, 24, 2, 1, kInvariantDepth};

constexpr int kMostFewRows = 16;

// The blocks for all tiles. Other groups than expected have other tiles: where there are more,
// blocks have several.
std::int64_t blocks_of(const WeightOnlyProblem& problem, const WeightOnlyConfig& config,
                       int resident, const Gpu& gpu) {
  const std::int64_t columns = core::ceil_divide(problem.columns, config.tile_columns);
  const RowTiles tiles = row_tiles(problem, config.tile_rows);
  if (!config.has_groups()) return tiles.most * columns;
  constexpr double kSurplus = 1.25;
  const auto expected = static_cast<std::int64_t>(std::ceil(kSurplus * tiles.expected));
  const std::int64_t at_once = std::int64_t{resident} * gpu.multiprocessors;
  return std::min(tiles.most * columns, std::max(expected * columns, at_once));
}

double rounds_of(double blocks, const Gpu& gpu) {
  return std::max(std::ceil(blocks / gpu.multiprocessors), 1.0);
}

// Rows of x that a tile for few of them holds.
int held_rows(std::int64_t rows) {
  int held = 1;
  while (held < rows) held *= 2;
  return held;
}

// How many blocks a multiprocessor has at a time, by shared memory and by registers.
int resident_blocks(const WeightOnlyConfig& config, const Gpu& gpu) {
  constexpr int kReserved = 1024;  // of shared memory, for each block
  constexpr double kRegisters = 65536;
  const int by_memory =
      (gpu.shared_memory_per_block + kReserved) / (config.shared_bytes() + kReserved);
  // The registers that compilers take: operands and addresses, and half as much again for each sum,
  // of which blocks want two.
  const int sets = config.has_blocks() && !config.ahead ? 2 : 1;
  const int sums = 4 * config.column_tiles() * config.row_tiles() * sets;
  const double registers = std::min(70 + 1.5 * sums, 255.0);
  const int by_registers = static_cast<int>(kRegisters / (registers * config.threads()));
  return std::max(std::min(by_memory, by_registers), 1);
}

// Blocks of groups go round for tile after tile, and the assembler for 12.x takes more out of that
// loop than it has registers for beside two sets of 64 sums. That for 8.0 spills some bytes of
// rings of three stages in tiles of many rows.
bool is_crowded(const WeightOnlyConfig& config, const Gpu& gpu) {
  if (gpu.compute_capability() == 80 && config.tile_rows >= 32 && !config.ahead &&
      config.stages == 3) {
    return true;
  }
  return config.has_groups() && config.has_blocks() && !config.ahead &&
         config.column_tiles() * config.row_tiles() >= 16 && gpu.compute_capability() >= 120;
}

// Instructions that a code takes to become x's type (kernels/numeric/decode_pairs.h).
double instructions_of_code(const WeightOnlyConfig& config, const Gpu& gpu) {
  double count = config.w == DType::kE5M2 ? 0.5 : gpu.compute_capability() >= 89 ? 0.75 : 2;
  if (config.x == DType::kBFloat16) count += 1.5;
  if (config.x == DType::kFloat32) count += 1;
  if (config.transposed) count += 0.5;
  if (config.depth_factors) count += 2.5;
  return count;
}

// Fitted to warps of 64 × 64, of which a scheduler has one or two: they hide what they wait for
// behind one another, not behind themselves.
double clocks_ahead(const WeightOnlyProblem& problem, const WeightOnlyWork& work, const Gpu& gpu) {
  // Clocks of a step of 64: what is waited for, and what the products of a warp take, instructions
  // that decode, and sums that change their unit. Clocks of a block: what it takes besides.
  constexpr double kWaits = 770, kProducts = 713, kOfInstruction = 0.73, kUnits = 170;
  constexpr double kStart = 4000, kSchedulers = 4;
  const WeightOnlyConfig& config = work.config;
  const auto columns = core::ceil_divide(problem.columns, config.tile_columns);
  const double tiles = row_tiles(problem, config.tile_rows).expected;
  const double rounds = rounds_of(tiles * static_cast<double>(columns), gpu);
  const double resident = std::min<double>(rounds, resident_blocks(config, gpu));
  const double warps = std::max(resident * config.threads() / 32 / kSchedulers, 1.0);
  const double decoded = 64.0 * config.group_depth() / 32 * instructions_of_code(config, gpu);
  const double of_sums = kProducts + (config.w_blocks ? kUnits : 0);
  const double of_warp = of_sums * config.row_tiles() / 8 + kOfInstruction * decoded;
  const auto steps = core::ceil_divide(problem.depth, std::int64_t{config.step_depth()});
  const double clocks = static_cast<double>(steps) * (kWaits + warps * of_warp) + warps * kStart;
  return std::ceil(rounds / resident) * clocks;
}

// Fitted to what all tiles took for 35 products drawn at random on an H200
// (docs/notes/weight-only.md).
double expected_clocks(const WeightOnlyProblem& problem, const WeightOnlyWork& work,
                       const Gpu& gpu) {
  if (work.config.ahead) return clocks_ahead(problem, work, gpu);
  // Rates of a Hopper's multiprocessor in a clock: multiplications of tensor cores, instructions of
  // lanes, bytes of shared memory, bytes that it can fetch, and of these what memory has for it.
  // Clocks from asking for bytes to having them, what a block takes besides, hidden by others
  // beside it, and what it takes to add what blocks have.
  constexpr double kProducts = 1220, kLanes = 128, kSharedBytes = 128, kFetched = 39;
  constexpr double kFromMemory = 23, kLatency = 3150, kStart = 4650, kCombine = 1000;
  constexpr double kCombinedBytes = 40, kOfAProduct = 3.3;  // instructions: its own, and loads
  // A warp by itself: clocks of a step, and of an instruction that waits for the one before it.
  constexpr double kStep = 245, kDependent = 2;
  const WeightOnlyConfig& config = work.config;
  const RowTiles tiles = row_tiles(problem, config.tile_rows);
  const auto tile_columns = core::ceil_divide(problem.columns, config.tile_columns);
  const double blocks = tiles.expected * static_cast<double>(tile_columns * work.splits);
  const double rounds = rounds_of(blocks, gpu);
  const double resident = std::min(rounds, static_cast<double>(resident_blocks(config, gpu)));
  // Each of these for one number of the depth.
  const double columns = config.tile_columns, rows = config.tile_rows;
  const double bytes = columns + rows * size_of(config.x);
  const double ahead = resident * (config.stages - 1) * config.stage_bytes();
  const double sharing = tiles.expected / tiles.matrices;
  const double fetched =
      std::max(bytes / std::min(kFetched, ahead / kLatency), columns / sharing / kFromMemory);
  const double read = columns * config.warps_rows + rows * size_of(config.x) * config.warps_columns;
  const double shared = (read + bytes) / kSharedBytes;
  double issued = columns * config.warps_rows * instructions_of_code(config, gpu) / kLanes;
  double multiplied = 0;
  if (config.on_tensor_cores()) {
    const double products = columns * std::max(rows, 8.0);
    multiplied = products / kProducts;
    issued += products / (16 * 8 * 16) * 32 * kOfAProduct / kLanes;
  } else {
    issued += columns * (rows + 1) / kLanes;
  }
  // Groups of warps may have no part of the last step's depth.
  const std::int64_t steps = core::ceil_divide(
      core::ceil_divide(problem.depth, std::int64_t{config.step_depth()}), work.splits);
  const auto depth = static_cast<double>(steps * config.step_depth());
  // They hide behind one another in part.
  double worked = std::hypot(std::hypot(fetched, shared), std::hypot(issued, multiplied));
  // While the warps of a block wait for one another nobody works, if there is no other block.
  if (resident == 1 && rounds > 1) worked *= 1.1;
  const double of_warp = issued * kLanes * config.step_depth() / config.threads();
  const double alone =
      std::ceil(rounds / resident) * static_cast<double>(steps) * (kStep + kDependent * of_warp);
  double clocks = std::hypot(rounds * depth * worked, alone) + rounds * kStart / resident;
  if (config.split) {
    const auto sums = static_cast<double>(work.splits * problem.rows * problem.columns);
    clocks += kCombine + 8 * sums / gpu.multiprocessors / kCombinedBytes;
  }
  return clocks;
}

std::string name_of(const WeightOnlyWork& work) {
  const WeightOnlyConfig& config = work.config;
  return core::format("{}x{}.w{}x{}x{}.s{}.k{}{}", config.tile_columns, config.tile_rows,
                      config.warps_columns, config.warps_rows, config.warps_depth, config.stages,
                      work.splits, config.ahead ? ".ahead" : "");
}

class WeightOnly final : public WeightOnlyPlanner {
 public:
  Candidates candidates(const WeightOnlyProblem& problem, const Gpu& gpu) const override {
    Candidates candidates;
    for (const WeightOnlyWork& work : warp_weight_only_candidates(problem, gpu)) {
      candidates.push_back({name_of(work), work});
    }
    return candidates;
  }

  Reckonings reckon(const WeightOnlyProblem& problem, const Gpu& gpu) const override {
    Reckonings all;
    for (const WeightOnlyWork& work : warp_weight_only_candidates(problem, gpu)) {
      all.push_back({work, expected_clocks(problem, work, gpu)});
    }
    return all;
  }

  // The kernel of warps that multiply and, where blocks share the depth, the one that adds what
  // they have.
  std::vector<KernelPlan> kernels(const WeightOnlyProblem& problem, const WeightOnlyChoice& choice,
                                  const Gpu& gpu) const override {
    const auto& work = std::get<WeightOnlyWork>(choice);
    const char* const called = operation_of(problem);
    const WeightOnlyConfig& config = work.config;
    const std::int64_t blocks =
        blocks_of(problem, config, resident_blocks(config, gpu), gpu) * work.splits;
    std::vector<KernelPlan> kernels{
        kernel_plan(called, config.header(), config.kernel(), config, blocks)};
    kernels.back().shared_bytes = config.shared_bytes();
    if (config.split) {
      const WeightOnlyConfig combine = config.of_combination();
      const std::int64_t fours = problem.rows * core::ceil_divide(problem.columns, 4);
      kernels.push_back(kernel_plan(called, "kernels/weight_only/kernel.h",
                                    "combine_weight_only_kernel", combine,
                                    core::ceil_divide(fours, combine.threads())));
    }
    return kernels;
  }
};

}  // namespace

std::vector<WeightOnlyWork> warp_weight_only_candidates(const WeightOnlyProblem& problem,
                                                        const Gpu& gpu) {
  WeightOnlyConfig config{.w = problem.w,
                          .x = problem.x,
                          .out = problem.out,
                          .transposed = problem.transposed,
                          .w_blocks = varies_along_k(problem.w_scales),
                          .x_blocks = problem.x_blocks,
                          .vectors = problem.is_aligned,
                          .store_vectors = problem.out_is_aligned,
                          .work = problem.work,
                          .gathered = problem.gathered};
  if (problem.transposed) {
    config.w_blocks = problem.w_scales == Granularity::kBlock128x128;
    config.depth_factors =
        problem.w_scales == Granularity::kChannel || problem.w_scales == Granularity::kBlock1x128;
  }
  const std::int64_t most_splits =
      problem.has_workspace && !problem.batch_invariant
          ? config::weight_only_splits(problem.rows, problem.columns, problem.depth)
          : 1;
  constexpr int kLeastStages = 2, kDeepestRing = 4;
  std::vector<WeightOnlyWork> candidates;
  const auto add = [&](const Tiling& tiling, int rows) {
    if (problem.batch_invariant && tiling.warps_depth != kInvariantDepth) return;
    config.tile_columns = tiling.columns;
    config.tile_rows = rows;
    config.warps_columns = tiling.warps_columns;
    config.warps_rows = tiling.warps_rows;
    config.warps_depth = tiling.warps_depth;
    config.split = false;
    for (config.stages = kDeepestRing; config.stages >= kLeastStages; --config.stages) {
      if (config.invalid_reason() != nullptr || is_crowded(config, gpu) ||
          config.shared_bytes() > gpu.shared_memory_per_block) {
        continue;
      }
      // Some tens of rows, of which tiles are few, are not for those that decode ahead.
      for (std::int64_t splits = 1; splits <= (config.ahead ? 1 : most_splits); splits *= 2) {
        config.split = splits > 1;
        candidates.push_back({config, splits});
      }
    }
  };
  const bool has_groups = config::has_groups(problem.work);
  const double rows = expected_rows(problem);
  // Groups differ, so they have tiles for some more rows than are expected, and for fewer.
  const auto fits = [&](int tile_rows) {
    return !has_groups || (rows <= 4 * tile_rows && tile_rows <= 8 * std::max(rows, 1.0));
  };
  if (has_groups) {
    for (int held = 1; held <= kMostFewRows; held *= 2) {
      if (!fits(held)) continue;
      for (const Tiling& tiling : kFewRows) add(tiling, held);
    }
  } else if (problem.rows <= kMostFewRows) {
    for (const Tiling& tiling : kFewRows) add(tiling, held_rows(problem.rows));
  }
  if (has_groups ? rows > kMostFewRows / 4 : problem.rows > kMostFewRows) {
    for (const Tiling& tiling : kManyRows) {
      if (fits(tiling.rows) || rows > tiling.rows) add(tiling, tiling.rows);
    }
    if (problem.batch_invariant) {
      add(kSmall, kSmall.rows);
      return candidates;
    }
    config.ahead = true;
    const int capability = gpu.compute_capability();
    add(kAhead, kAhead.rows);
    if (capability >= 80 && capability < 89) add(kAheadOfAmpere, kAheadOfAmpere.rows);
  }
  return candidates;
}

const WeightOnlyPlanner& weight_only_planner() {
  static const WeightOnly planner;
  return planner;
}

}  // namespace octofold::plan::mma
