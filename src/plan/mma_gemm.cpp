#include "plan/mma_gemm.h"

#include <algorithm>
#include <cstdint>
#include <fmt/ranges.h>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/format.h"
#include "plan/capability.h"

namespace octofold::plan {
namespace {

using config::MmaGemmConfig;

constexpr std::string_view kOperation = "gemm";

// More are not needed to hide the latency of memory.
constexpr int kMostStages = 5;

struct Tile {
  int rows, columns, row_warps, column_warps, blocks_per_multiprocessor;
};

// By reasoning; none has been timed yet.
constexpr Tile kTiles[] = {
    {128, 128, 2, 4, 1}, {64, 128, 2, 4, 1}, {64, 64, 2, 2, 2}, {32, 128, 1, 4, 1},
    {32, 64, 2, 2, 2},   {16, 128, 1, 4, 1}, {16, 64, 1, 4, 2},
};

// As many stages as fit; fewer than two where the GPU lacks the memory.
MmaGemmConfig configure(const GemmProblem& problem, const Tile& tile, const Gpu& gpu) {
  MmaGemmConfig config{.form = problem.product.form,
                       .tile_rows = tile.rows,
                       .tile_columns = tile.columns,
                       .row_warps = tile.row_warps,
                       .column_warps = tile.column_warps,
                       .stages = kMostStages,
                       .blocks_per_multiprocessor = tile.blocks_per_multiprocessor,
                       .load_bytes = problem.operands_fit_tma     ? 16
                                     : problem.operands_fit_words ? 4
                                                                  : 1};
  const int memory = std::min(config::mma_shared_memory(tile.blocks_per_multiprocessor),
                              gpu.shared_memory_per_block);
  while (config.stages > 0 && config.shared_bytes() > memory) --config.stages;
  return config;
}

std::string name_of(const MmaGemmConfig& config) {
  return core::format("{}x{}.w{}x{}.b{}", config.tile_rows, config.tile_columns, config.row_warps,
                      config.column_warps, config.blocks_per_multiprocessor);
}

std::int64_t tiles_of(const GemmProblem& problem, const MmaGemmConfig& config) {
  return config::ceil_divide(problem.product.m, config.tile_rows) *
         config::ceil_divide(problem.product.n, config.tile_columns);
}

// Of all tiles that one multiprocessor computes, for 128 of K: products, or bytes from L2, and what
// a stage takes besides. Clocks, roughly: 512 products and 24 bytes in one, of Ada's kind.
double predicted_clocks(const GemmProblem& problem, const MmaGemmConfig& config, const Gpu& gpu) {
  constexpr double kProductsPerClock = 512, kBytesPerClock = 24, kClocksOfStage = 100;
  const double products = config::kMmaDepth * config.tile_rows * config.tile_columns;
  const double bytes = config::kMmaDepth * (config.tile_rows + config.tile_columns);
  const auto tiles =
      config::ceil_divide(tiles_of(problem, config), std::max(gpu.multiprocessors, 1));
  return static_cast<double>(tiles) *
         (std::max(products / kProductsPerClock, bytes / kBytesPerClock) + kClocksOfStage);
}

void require_sizes(const GemmProblem& problem) {
  // Stages are begun before it is known that K ends there.
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max() - 8 * config::kMmaDepth;
  const auto& [m, n, k, form] = problem.product;
  const auto tiles = [](std::int64_t size, int tile) { return size / tile + 1; };
  if (std::max({m, n, k}) > kLargest || tiles(m, 16) > kLargest / tiles(n, 64)) {
    core::fail(ErrorCode::kUnsupported,
               "{}: expected M, N, K up to {} and at most {} tiles of 16×64, got {}×{}×{}",
               kOperation, kLargest, kLargest, m, n, k);
  }
}

MmaGemmPlan plan_config(const GemmProblem& problem, const MmaGemmConfig& config) {
  KernelPlan kernel =
      kernel_plan(kOperation, config.kHeader, config.kKernel, config, tiles_of(problem, config));
  kernel.shared_bytes = config.shared_bytes();
  return {config, {std::move(kernel)}};
}

}  // namespace

bool multiplies_by_warps(const Gpu& gpu) {
  return gpu.compute_capability() != kHopper.compute_capability() &&
         why_not(Operation::kProduct, gpu).empty();
}

MmaGemmPlan plan_mma_gemm(const GemmProblem& problem, const Gpu& gpu) {
  require_sizes(problem);
  const std::vector<MmaGemmCandidate> candidates = mma_gemm_candidates(problem, gpu);
  if (candidates.empty()) {
    core::fail(ErrorCode::kInternal, "{}: no tile for {}", kOperation, describe(problem));
  }
  const auto clocks = [&](const MmaGemmCandidate& candidate) {
    return predicted_clocks(problem, candidate.config, gpu);
  };
  return plan_config(problem, std::ranges::min_element(candidates, {}, clocks)->config);
}

MmaGemmPlan plan_mma_gemm(const GemmProblem& problem, const Gpu& gpu, std::string_view candidate) {
  require_sizes(problem);
  std::vector<std::string> names;
  for (const auto& [name, config] : mma_gemm_candidates(problem, gpu)) {
    if (name == candidate) return plan_config(problem, config);
    names.push_back(name);
  }
  core::fail_argument(kOperation, "candidate", core::format("one of {}", fmt::join(names, ", ")),
                      candidate);
}

std::vector<MmaGemmCandidate> mma_gemm_candidates(const GemmProblem& problem, const Gpu& gpu) {
  require_kernels(Operation::kProduct, kOperation, gpu);
  std::vector<MmaGemmCandidate> candidates;
  for (const Tile& tile : kTiles) {
    const MmaGemmConfig config = configure(problem, tile, gpu);
    if (config.invalid_reason() == nullptr) candidates.push_back({name_of(config), config});
  }
  return candidates;
}

}  // namespace octofold::plan
