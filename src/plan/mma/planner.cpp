#include "plan/mma/planner.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/check.h"
#include "core/format.h"

namespace octofold::plan::mma {
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

class Planner final : public ProductPlanner {
 public:
  void require_sizes(const GemmProblem& problem) const override { mma::require_sizes(problem); }

  std::vector<ProductCandidate> candidates(const GemmProblem& problem,
                                           const Gpu& gpu) const override {
    std::vector<ProductCandidate> candidates;
    for (const Tile& tile : kTiles) {
      const MmaGemmConfig config = configure(problem, tile, gpu);
      if (config.invalid_reason() == nullptr) candidates.push_back({name_of(config), config});
    }
    return candidates;
  }

  ProductConfig choose(const GemmProblem& problem, const Gpu& gpu) const override {
    const std::vector<ProductCandidate> all = candidates(problem, gpu);
    if (all.empty()) {
      core::fail(ErrorCode::kInternal, "{}: no tile for {}", kOperation, describe(problem));
    }
    const auto clocks = [&](const ProductCandidate& candidate) {
      return predicted_clocks(problem, std::get<MmaGemmConfig>(candidate.config), gpu);
    };
    return std::ranges::min_element(all, {}, clocks)->config;
  }

  KernelPlan kernel(const GemmProblem& problem, const ProductConfig& chosen,
                    const Gpu&) const override {
    const auto& config = std::get<MmaGemmConfig>(chosen);
    KernelPlan kernel =
        kernel_plan(kOperation, config.kHeader, config.kKernel, config, tiles_of(problem, config));
    kernel.shared_bytes = config.shared_bytes();
    return kernel;
  }
};

}  // namespace

const ProductPlanner& planner() {
  static const Planner planner;
  return planner;
}

}  // namespace octofold::plan::mma
