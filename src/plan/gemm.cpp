#include "plan/gemm.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/check.h"
#include "core/format.h"
#include "kernels/config/arithmetic.h"
#include "kernels/config/tile_schedule.h"

namespace octofold::plan {
namespace {

using config::Element;
using config::GemmConfig;
using config::GemmScaling;
using config::MathOrder;
using config::OperandLoad;
using config::OutputStore;

// A way to cut D into tiles, and what it costs on a Hopper multiprocessor, in clocks: for each
// stage of K with all loads arriving in time, and for each tile besides. Measured on an H200 with
// BF16 output and block scales, or (marked ~) laid between measured neighbours; docs/kernels.md
// tells how. Only ratios matter.
struct Tiling {
  int tile_m, tile_n, math_warpgroups, cluster_m, cluster_n;
  MathOrder order;
  bool early_wait;
  int clocks_per_stage, clocks_per_tile;
};

constexpr std::array kTilings = {
    Tiling{256, 128, 2, 1, 2, MathOrder::kFree, true, 1057, 3500},
    Tiling{256, 128, 2, 1, 2, MathOrder::kTakeTurns, false, 1095, 2000},
    Tiling{256, 128, 2, 1, 1, MathOrder::kFree, true, 1083, 3500},
    Tiling{256, 128, 2, 1, 1, MathOrder::kFree, false, 1110, 2000},
    Tiling{128, 192, 2, 2, 1, MathOrder::kFree, true, 783, 2800},
    Tiling{128, 192, 2, 2, 1, MathOrder::kTakeTurns, false, 803, 1700},
    Tiling{128, 160, 2, 1, 1, MathOrder::kFree, true, 720, 2400},
    Tiling{128, 128, 2, 1, 2, MathOrder::kFree, true, 574, 2000},
    Tiling{128, 128, 2, 1, 1, MathOrder::kFree, true, 605, 2000},
    Tiling{128, 64, 2, 1, 1, MathOrder::kFree, true, 500, 1500},   // ~
    Tiling{128, 32, 2, 1, 1, MathOrder::kFree, true, 430, 1200},   // ~
    Tiling{64, 128, 1, 1, 1, MathOrder::kFree, false, 560, 1500},  // ~
    Tiling{64, 64, 1, 1, 1, MathOrder::kFree, false, 430, 1200},   // ~
    Tiling{64, 32, 1, 1, 1, MathOrder::kFree, false, 370, 1000},   // ~
    Tiling{64, 16, 1, 1, 1, MathOrder::kFree, false, 340, 1000},   // ~
};

// Deeper pipelines than this gained nothing.
constexpr int kMostStages = 8;

bool supports_gemm(const Gpu& gpu) { return gpu.compute_major == 9 && gpu.compute_minor == 0; }

// The kernel of this problem with this tiling, and with as many stages as fit.
GemmConfig configure(const GemmProblem& problem, const Tiling& tiling) {
  const bool promote = config::has_block_scales(problem.scaling) || !problem.fast_accumulation;
  const bool store_by_tma =
      problem.output_fits_tma && problem.operands_fit_tma && problem.out != Element::kFloat32;
  GemmConfig config{
      .a = problem.a,
      .b = problem.b,
      .out = problem.out,
      .scaling = problem.scaling,
      .c = problem.c,
      .bias = problem.bias,
      .promote = promote,
      .tile_m = tiling.tile_m,
      .tile_n = tiling.tile_n,
      .math_warpgroups = tiling.math_warpgroups,
      .stages = kMostStages,
      .cluster_m = tiling.cluster_m,
      .cluster_n = tiling.cluster_n,
      .load = problem.operands_fit_tma ? OperandLoad::kTma : OperandLoad::kThreads,
      .store = store_by_tma ? OutputStore::kTma : OutputStore::kDirect,
      .order = promote ? tiling.order : MathOrder::kFree,
      .early_wait = promote && tiling.early_wait,
  };
  while (config.stages > 2 && config::SmemLayout(config).total > config::kSharedMemoryLimit) {
    --config.stages;
  }
  return config;
}

int clusters_at_once(const GemmConfig& config, const Gpu& gpu) {
  return gpu.multiprocessors / config.cluster_size();
}

int clusters_of_tiles(const GemmProblem& problem, const GemmConfig& config) {
  return config::tile_schedule(static_cast<int>(problem.m), static_cast<int>(problem.n),
                               config.cluster_tile_m(), config.cluster_tile_n(), config.raster_rows)
      .count();
}

std::int64_t predicted_clocks(const GemmProblem& problem, const GemmConfig& config,
                              const Tiling& tiling, const Gpu& gpu) {
  const std::int64_t waves =
      config::ceil_divide(clusters_of_tiles(problem, config), clusters_at_once(config, gpu));
  const std::int64_t stages = config::ceil_divide(problem.k, config::kBlockK);
  return waves * (stages * tiling.clocks_per_stage + tiling.clocks_per_tile);
}

void require_sizes(const GemmProblem& problem) {
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max() - config::kBlockK;
  // The smallest tile's count has to fit into an int too.
  const auto tiles = [](std::int64_t size, int tile) { return size / tile + 1; };
  if (std::max({problem.m, problem.n, problem.k}) > kLargest ||
      tiles(problem.m, 64) > kLargest / tiles(problem.n, 16)) {
    core::fail(ErrorCode::kUnsupported,
               "gemm: expected M, N, K below {} and at most {} tiles of 64×16, got {}×{}×{}",
               kLargest, kLargest, problem.m, problem.n, problem.k);
  }
}

}  // namespace

GemmPlan plan_gemm(const GemmProblem& problem, const Gpu& gpu) {
  require_gemm_support(gpu);
  require_sizes(problem);
  GemmPlan best;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Tiling& tiling : kTilings) {
    const GemmConfig config = configure(problem, tiling);
    if (config.invalid_reason() != nullptr) continue;
    const std::int64_t clocks = predicted_clocks(problem, config, tiling, gpu);
    if (clocks < least) {
      least = clocks;
      best.config = config;
    }
  }
  best.blocks =
      std::min(clusters_at_once(best.config, gpu), clusters_of_tiles(problem, best.config)) *
      best.config.cluster_size();
  return best;
}

void require_gemm_support(const Gpu& gpu) {
  if (supports_gemm(gpu)) return;
  core::fail(ErrorCode::kUnsupported,
             "gemm: no kernel for compute capability {}.{}: FP8 products run on 9.0 (H100, H200), "
             "and on the CPU backend, which takes the same tensors in host memory",
             gpu.compute_major, gpu.compute_minor);
}

std::vector<GemmConfig> all_gemm_configs(const GemmProblem& problem) {
  std::vector<GemmConfig> configs;
  for (const Tiling& tiling : kTilings) {
    const GemmConfig config = configure(problem, tiling);
    if (config.invalid_reason() == nullptr) configs.push_back(config);
  }
  return configs;
}

}  // namespace octofold::plan
