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
constexpr Tiling kManyRows[] = {{64, 32, 2, 1, 4},  {64, 32, 2, 1, 2}, {128, 32, 4, 1, 2},
                                {64, 64, 2, 1, 4},  {64, 64, 2, 1, 2}, {128, 64, 4, 1, 2},
                                {128, 64, 4, 1, 1}, {64, 64, 2, 2, 1}, {64, 128, 2, 2, 1},
                                {128, 128, 4, 2, 1}};

constexpr int kMostStages = 4;

// Rows of x that a tile for few of them holds.
int held_rows(std::int64_t rows) {
  int held = 1;
  while (held < rows) held *= 2;
  return held;
}

// One of both for each of a block's multiprocessor: threads and shared memory.
std::int64_t resident_blocks(const WeightOnlyConfig& config, const Gpu& gpu) {
  constexpr int kReserved = 1024;  // of shared memory, for each block
  const int by_memory =
      (gpu.shared_memory_per_block + kReserved) / (config.shared_bytes() + kReserved);
  const int by_threads = (gpu.compute_major == 7 ? 512 : 768) / config.threads();
  return std::clamp(std::min(by_memory, by_threads), 1, 8);
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
    config.stages = std::min(kMostStages, gpu.shared_memory_per_block / config.stage_bytes());
    if (config.invalid_reason() != nullptr) return;
    if (config.shared_bytes() <= gpu.shared_memory_per_block) candidates.push_back(config);
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
  // Of a multiprocessor in a clock: bytes that it can fetch, multiplications of tensor cores,
  // instructions of lanes, of which a weight takes some to become x's type; and what a block has
  // besides, hidden by others where there are some.
  constexpr double kBytes = 40, kProducts = 1800, kLanes = 128, kDecoding = 2.5, kStart = 3000;
  const double rows = std::max(config.tile_rows, 8);
  const double fetched = (config.tile_columns + config.tile_rows * size_of(config.x)) / kBytes;
  double worked = config.tile_columns * (config.warps_rows * kDecoding / kLanes);
  worked += config.on_tensor_cores() ? config.tile_columns * rows / kProducts
                                     : config.tile_columns * config.tile_rows / kLanes;
  const std::int64_t blocks = core::ceil_divide(problem.rows, config.tile_rows) *
                              core::ceil_divide(problem.columns, config.tile_columns);
  const auto rounds = static_cast<double>(core::ceil_divide(blocks, gpu.multiprocessors));
  // Groups of warps that have no part of the depth, or a smaller one than others.
  const auto depth = static_cast<double>(core::ceil_divide(problem.depth, config.step_depth()) *
                                         config.step_depth());
  const double resident = std::min(rounds, static_cast<double>(resident_blocks(config, gpu)));
  return rounds * (depth * std::max(fetched, worked) + kStart / resident);
}

WeightOnlyPlan plan_weight_only(const WeightOnlyProblem& problem, std::string_view called,
                                const Gpu& gpu) {
  require_kernels(
      problem.rows <= 16 && called == "gemv" ? Operation::kGemv : Operation::kWeightOnly, called,
      gpu);
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
