#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "core/format.h"
#include "plan/mma/planner.h"

namespace octofold::plan::mma {
namespace {

using config::MmaGemmConfig;

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

// The tiles of gated products: 128 columns of H are 256 rows of B, two stages of which fill the
// memory. They are large, so that one ahead hides as much as several small ones do.
constexpr Tile kGatedTiles[] = {{64, 128, 2, 4, 1}, {32, 128, 2, 4, 1}, {16, 128, 1, 4, 1}};

std::span<const Tile> tiles_for(const GemmProblem& problem) {
  if (problem.gated.exists) return kGatedTiles;
  return kTiles;
}

// They sum a row alike, as none splits K: problems that are to be batch-invariant have them all.
// As many stages as fit; fewer than two where the GPU lacks the memory.
MmaGemmConfig configure(const GemmProblem& problem, const Tile& tile, const Gpu& gpu) {
  MmaGemmConfig config{.form = problem.product.form,
                       .gated = problem.gated,
                       .work = problem.work,
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

// The number of tiles, as far as the host can expect it.
std::int64_t tiles_of(const GemmProblem& problem, const MmaGemmConfig& config) {
  const GroupSizes group = expected_group(problem);
  return problem.groups * config::ceil_divide(group.m, config.tile_rows) *
         config::ceil_divide(group.n, config.tile_columns);
}

// A block for each tile; with groups, of whose tiles few may come, as many blocks as run at one
// time, which stay.
std::int64_t blocks_of(const GemmProblem& problem, const MmaGemmConfig& config, const Gpu& gpu) {
  const std::int64_t tiles = most_tiles(problem, config.tile_rows, config.tile_columns);
  if (!config::has_groups(problem.work)) return tiles;
  return std::min(
      tiles, std::int64_t{std::max(gpu.multiprocessors, 1)} * config.blocks_per_multiprocessor);
}

// The clocks of all tiles that one multiprocessor computes, for 128 of K: products, or bytes from
// L2, and what a stage takes besides. Roughly: 512 products and 24 bytes in one, of Ada's kind.
double predicted_clocks(const GemmProblem& problem, const MmaGemmConfig& config, const Gpu& gpu) {
  constexpr double kProductsPerClock = 512, kBytesPerClock = 24, kClocksOfStage = 100;
  const double products = config::kMmaDepth * config.tile_rows * config.operand_columns();
  const double bytes = config::kMmaDepth * (config.tile_rows + config.operand_columns());
  const auto tiles =
      config::ceil_divide(tiles_of(problem, config), std::max(gpu.multiprocessors, 1));
  return static_cast<double>(tiles) *
         (std::max(products / kProductsPerClock, bytes / kBytesPerClock) + kClocksOfStage);
}

// Stages are begun before it is known that K ends there, and a block counts one round of tiles on
// before it knows that there are no more.
constexpr std::int64_t kLargest = std::numeric_limits<int>::max() - 8 * config::kMmaDepth;
constexpr SizeLimits kLimits{
    .largest = kLargest, .most_tiles = kLargest / 2, .rows_of_a = 16, .rows_of_b = 64};

class Products final : public ProductPlanner {
 public:
  void require_sizes(const GemmProblem& problem) const override {
    plan::require_sizes(problem, kLimits);
  }

  Candidates candidates(const GemmProblem& problem, const Gpu& gpu) const override {
    Candidates candidates;
    if (problem.dynamic.exists) return candidates;  // no kernel casts A
    for (const Tile& tile : tiles_for(problem)) {
      const MmaGemmConfig config = configure(problem, tile, gpu);
      if (config.invalid_reason() == nullptr) candidates.push_back({name_of(config), config});
    }
    return candidates;
  }

  Reckonings reckon(const GemmProblem& problem, const Gpu& gpu) const override {
    Reckonings all;
    for (const Candidate<ProductConfig>& each : candidates(problem, gpu)) {
      const auto& config = std::get<MmaGemmConfig>(each.config);
      all.push_back({config, predicted_clocks(problem, config, gpu)});
    }
    return all;
  }

  std::vector<KernelPlan> kernels(const GemmProblem& problem, const ProductConfig& chosen,
                                  const Gpu& gpu) const override {
    const auto& config = std::get<MmaGemmConfig>(chosen);
    KernelPlan kernel = kernel_plan("gemm", config.kHeader, config.kKernel, config,
                                    blocks_of(problem, config, gpu));
    kernel.shared_bytes = config.shared_bytes();
    return {kernel};
  }
};

}  // namespace

const ProductPlanner& product_planner() {
  static const Products planner;
  return planner;
}

}  // namespace octofold::plan::mma
