#include "plan/weight_only.h"

#include <algorithm>
#include <iterator>

#include "core/check.h"
#include "core/format.h"
#include "core/scale_layout.h"
#include "plan/capability.h"

namespace octofold::plan {
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
                               {32, 0, 1, 1, 8}, {32, 0, 1, 1, 4}, {64, 0, 2, 1, 4},
                               {64, 0, 2, 1, 2}, {64, 0, 1, 1, 4}};
constexpr Tiling kManyRows[] = {{64, 32, 2, 1, 4},   {64, 32, 2, 1, 2},  {128, 32, 4, 1, 2},
                                {64, 64, 2, 2, 2},   {64, 64, 2, 1, 2},  {128, 64, 4, 2, 1},
                                {128, 64, 4, 1, 1},  {64, 64, 2, 2, 1},  {64, 128, 2, 2, 1},
                                {128, 128, 4, 2, 1}, {128, 128, 2, 4, 1}};

constexpr int kLeastStages = 2, kMostStages = 4;

// Rows of x that a tile for few of them holds.
int held_rows(std::int64_t rows) {
  int held = 1;
  while (held < rows) held *= 2;
  return held;
}

// How many blocks a multiprocessor has at a time, by shared memory and by threads.
int resident_blocks(const WeightOnlyConfig& config, const Gpu& gpu) {
  constexpr int kReserved = 1024;  // of shared memory, for each block
  const int by_memory =
      (gpu.shared_memory_per_block + kReserved) / (config.shared_bytes() + kReserved);
  // Registers for so many threads: 255 each of a warp with many sums, else 128.
  const bool has_many_sums = config.column_tiles() * config.row_tiles() >= 8;
  const int by_threads = (has_many_sums ? 256 : 512) / config.threads();
  return std::clamp(std::min(by_memory, by_threads), 1, 8);
}

// Instructions that a code takes to become x's type, and to be loaded (kernels/numeric/
// decode_pairs.h).
double instructions_of_code(const WeightOnlyConfig& config, const Gpu& gpu) {
  double count = config.w == DType::kE5M2 ? 0.5 : gpu.compute_capability() >= 89 ? 0.75 : 2;
  if (config.x == DType::kBFloat16) count += 1.5;
  if (config.x == DType::kFloat32) count += 1;
  if (config.transposed) count += 0.5;
  if (config.depth_factors) count += 2.5;
  return count + 1;
}

void require_bfloat16(const WeightOnlyProblem& problem, std::string_view called, const Gpu& gpu) {
  if (problem.x != DType::kBFloat16 || gpu.compute_major >= 8) return;
  core::fail(
      ErrorCode::kUnsupported,
      "{}: expected a GPU of compute capability 8.0 or later for products of bfloat16, got "
      "{}.{}; float16 works there, and the CPU backend takes the same tensors in host memory",
      called, gpu.compute_major, gpu.compute_minor);
}

}  // namespace

std::vector<WeightOnlyConfig> weight_only_candidates(const WeightOnlyProblem& problem,
                                                     const Gpu& gpu) {
  WeightOnlyConfig config{.w = problem.w,
                          .x = problem.x,
                          .out = problem.out,
                          .transposed = problem.transposed,
                          .w_blocks = varies_along_k(problem.w_scales),
                          .x_blocks = problem.x_blocks,
                          .vectors = problem.is_aligned,
                          .store_vectors = problem.out_is_aligned};
  if (problem.transposed) {
    config.w_blocks = problem.w_scales == Granularity::kBlock128x128;
    config.depth_factors =
        problem.w_scales == Granularity::kChannel || problem.w_scales == Granularity::kBlock1x128;
  }
  std::vector<WeightOnlyConfig> candidates;
  const auto add = [&](const Tiling& tiling, int rows) {
    config.tile_columns = tiling.columns;
    config.tile_rows = rows;
    config.warps_columns = tiling.warps_columns;
    config.warps_rows = tiling.warps_rows;
    config.warps_depth = tiling.warps_depth;
    for (config.stages = kMostStages; config.stages >= kLeastStages; --config.stages) {
      if (config.invalid_reason() == nullptr &&
          config.shared_bytes() <= gpu.shared_memory_per_block) {
        candidates.push_back(config);
      }
    }
  };
  if (problem.rows <= 16) {
    for (const Tiling& tiling : kFewRows) add(tiling, held_rows(problem.rows));
  } else {
    for (const Tiling& tiling : kManyRows) add(tiling, tiling.rows);
  }
  return candidates;
}

double expected_clocks(const WeightOnlyProblem& problem, const WeightOnlyConfig& config,
                       const Gpu& gpu) {
  // Of a Hopper's multiprocessor in a clock: multiplications of tensor cores, instructions of
  // lanes, bytes of shared memory, bytes that it can fetch, and of these what memory has for it.
  // Clocks from asking for bytes to having them, and what a block takes besides, hidden by others
  // beside it.
  constexpr double kProducts = 1800, kLanes = 128, kSharedBytes = 128, kFetched = 40;
  constexpr double kFromMemory = 20.8, kLatency = 1600, kStart = 3000;
  const std::int64_t blocks = core::ceil_divide(problem.rows, config.tile_rows) *
                              core::ceil_divide(problem.columns, config.tile_columns);
  const auto rounds = static_cast<double>(core::ceil_divide(blocks, gpu.multiprocessors));
  const double resident = std::min(rounds, static_cast<double>(resident_blocks(config, gpu)));
  // Each of these for one number of the depth.
  const double columns = config.tile_columns, rows = config.tile_rows;
  const double bytes = columns + rows * size_of(config.x);
  const double ahead = resident * (config.stages - 1) * config.stage_bytes();
  const auto sharing = static_cast<double>(core::ceil_divide(problem.rows, config.tile_rows));
  const double fetched =
      std::max(bytes / std::min(kFetched, ahead / kLatency), columns / sharing / kFromMemory);
  const double read = columns * config.warps_rows + rows * size_of(config.x) * config.warps_columns;
  const double shared = (read + bytes) / kSharedBytes;
  double issued = columns * config.warps_rows * instructions_of_code(config, gpu) / kLanes;
  double multiplied = 0;
  if (config.on_tensor_cores()) {
    multiplied = columns * std::max(rows, 8.0) / kProducts;
  } else {
    issued += columns * rows / kLanes;
  }
  // Few warps leave some clocks without an instruction.
  const double warps = resident * config.threads() / 32;
  issued *= 1 + 6 / warps;
  // Groups of warps may have no part of the last step's depth.
  const auto depth = static_cast<double>(core::ceil_divide(problem.depth, config.step_depth()) *
                                         config.step_depth());
  const double worked = std::max({fetched, shared, issued, multiplied});
  return rounds * (depth * worked + kStart / resident);
}

WeightOnlyPlan plan_weight_only(const WeightOnlyProblem& problem, std::string_view called,
                                const Gpu& gpu) {
  require_kernels(called == "gemv" ? Operation::kGemv : Operation::kWeightOnly, called, gpu);
  require_bfloat16(problem, called, gpu);
  const std::vector<WeightOnlyConfig> candidates = weight_only_candidates(problem, gpu);
  const auto clocks = [&](const WeightOnlyConfig& config) {
    return expected_clocks(problem, config, gpu);
  };
  const auto best = std::ranges::min_element(candidates, {}, clocks);
  if (best == candidates.end()) {
    core::fail(ErrorCode::kInternal, "{}: no tile fits {} bytes of shared memory", called,
               gpu.shared_memory_per_block);
  }
  WeightOnlyPlan plan{.config = *best};
  const std::int64_t blocks = core::ceil_divide(problem.rows, best->tile_rows) *
                              core::ceil_divide(problem.columns, best->tile_columns);
  plan.kernels.push_back(kernel_plan(called, best->kHeader, best->kKernel, *best, blocks));
  plan.kernels.back().shared_bytes = best->shared_bytes();
  return plan;
}

}  // namespace octofold::plan
