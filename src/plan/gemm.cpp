#include "plan/gemm.h"

#include <algorithm>
#include <array>
#include <fmt/ranges.h>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/format.h"
#include "kernels/config/arithmetic.h"
#include "kernels/config/tile_schedule.h"
#include "plan/tma.h"

namespace octofold::plan {
namespace {

using config::MathOrder;
using config::OperandLoad;
using config::OutputStore;
using config::Sm90GemmConfig;

// A way to cut D into tiles, and what it costs on a Hopper multiprocessor, in clocks: for each
// stage of K with all loads arriving in time, and for each tile besides. Measured on an H200 with
// BF16 output and block scales, or (marked ~) laid between measured neighbours; docs/kernels.md
// tells how. Only ratios matter.
struct Tiling {
  int rows, columns, math_warpgroups, cluster_rows, cluster_columns;
  MathOrder order;
  bool early_wait;
  int clocks_per_stage, clocks_per_tile;
};

constexpr std::array kTilings = {
    Tiling{256, 128, 2, 1, 2, MathOrder::kFree, true, 1057, 3500},
    Tiling{256, 128, 2, 1, 2, MathOrder::kOrdered, false, 1095, 2000},
    Tiling{256, 128, 2, 1, 1, MathOrder::kFree, true, 1083, 3500},
    Tiling{256, 128, 2, 1, 1, MathOrder::kFree, false, 1110, 2000},
    Tiling{128, 192, 2, 2, 1, MathOrder::kFree, true, 783, 2800},
    Tiling{128, 192, 2, 2, 1, MathOrder::kOrdered, false, 803, 1700},
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
Sm90GemmConfig configure(const GemmProblem& problem, const Tiling& tiling, const Gpu& gpu) {
  const bool promote = !problem.product.form.fast_accumulation;
  const bool store_by_tma = problem.output_fits_tma && problem.operands_fit_tma &&
                            problem.product.form.out != DType::kFloat32;
  Sm90GemmConfig config{
      .form = problem.product.form,
      .tile_rows = tiling.rows,
      .tile_columns = tiling.columns,
      .math_warpgroups = tiling.math_warpgroups,
      .stages = kMostStages,
      .cluster_rows = tiling.cluster_rows,
      .cluster_columns = tiling.cluster_columns,
      .load = problem.operands_fit_tma ? OperandLoad::kTma : OperandLoad::kThreads,
      .store = store_by_tma ? OutputStore::kTma : OutputStore::kDirect,
      .order = promote ? tiling.order : MathOrder::kFree,
      .early_wait = promote && tiling.early_wait,
  };
  while (config.stages > 2 && config::Sm90SmemLayout(config).total > gpu.shared_memory_per_block) {
    --config.stages;
  }
  return config;
}

std::string name_of(const Sm90GemmConfig& config) {
  return core::format("{}x{}.w{}.c{}x{}{}{}", config.tile_rows, config.tile_columns,
                      config.math_warpgroups, config.cluster_rows, config.cluster_columns,
                      config.order == MathOrder::kOrdered ? ".ordered" : "",
                      config.early_wait ? ".early" : "");
}

int clusters_at_once(const Sm90GemmConfig& config, const Gpu& gpu) {
  return gpu.multiprocessors / config.cluster_size();
}

int clusters_of_tiles(const GemmProblem& problem, const Sm90GemmConfig& config) {
  return config::tile_schedule(static_cast<int>(problem.product.m),
                               static_cast<int>(problem.product.n), config.cluster_tile_rows(),
                               config.cluster_tile_columns(), config.raster_rows)
      .count();
}

std::int64_t predicted_clocks(const GemmProblem& problem, const Sm90GemmConfig& config,
                              const Tiling& tiling, const Gpu& gpu) {
  const std::int64_t waves =
      config::ceil_divide(clusters_of_tiles(problem, config), clusters_at_once(config, gpu));
  const std::int64_t stages = config::ceil_divide(problem.product.k, config::kStageDepth);
  return waves * (stages * tiling.clocks_per_stage + tiling.clocks_per_tile);
}

GemmPlan plan_config(const GemmProblem& problem, const Sm90GemmConfig& config, const Gpu& gpu) {
  const int clusters = std::min(clusters_at_once(config, gpu), clusters_of_tiles(problem, config));
  KernelPlan kernel =
      kernel_plan("gemm", kGemmHeader, kGemmKernel, config, clusters * config.cluster_size());
  kernel.cluster_size = config.cluster_size();
  kernel.shared_bytes = config::Sm90SmemLayout(config).total;
  return {config, {std::move(kernel)}};
}

void require_sizes(const GemmProblem& problem) {
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max() - config::kStageDepth;
  // The smallest tile's count has to fit into an int too.
  const auto tiles = [](std::int64_t size, int tile) { return size / tile + 1; };
  if (std::max({problem.product.m, problem.product.n, problem.product.k}) > kLargest ||
      tiles(problem.product.m, 64) > kLargest / tiles(problem.product.n, 16)) {
    core::fail(ErrorCode::kUnsupported,
               "gemm: expected M, N, K below {} and at most {} tiles of 64×16, got {}×{}×{}",
               kLargest, kLargest, problem.product.m, problem.product.n, problem.product.k);
  }
}

Addend addend_of(const std::optional<TensorView>& addend, DType out) {
  if (!addend) return Addend::kNone;
  return addend->dtype == out ? Addend::kOutputType : Addend::kFloat32;
}

}  // namespace

GemmProblem problem_of(const GemmArguments& arguments) {
  const MutableTensorView& out = arguments.out;
  return {.product = {.m = out.shape[0],
                      .n = out.shape[1],
                      .k = arguments.a.data.shape[1],
                      .form = {.a = {arguments.a.data.dtype, arguments.a.granularity},
                               .b = {arguments.b.data.dtype, arguments.b.granularity},
                               .out = out.dtype,
                               .c = addend_of(arguments.c, out.dtype),
                               .bias = addend_of(arguments.bias, out.dtype),
                               .fast_accumulation = arguments.fast_accumulation}},
          .operands_fit_tma = tma_obstacle(arguments.a.data) == nullptr &&
                              tma_obstacle(arguments.b.data) == nullptr,
          .output_fits_tma = tma_store_obstacle(out) == nullptr};
}

GemmProblem contiguous(const octofold::GemmProblem& product) {
  // No address: a multiple of anything.
  const auto tensor = [](DType dtype, std::int64_t rows, std::int64_t cols) {
    return matrix(static_cast<const char*>(nullptr), dtype, rows, cols);
  };
  const auto& [m, n, k, form] = product;
  return {.product = product,
          .operands_fit_tma = tma_obstacle(tensor(form.a.type, m, k)) == nullptr &&
                              tma_obstacle(tensor(form.b.type, n, k)) == nullptr,
          .output_fits_tma = tma_store_obstacle(tensor(form.out, m, n)) == nullptr};
}

GemmPlan plan_gemm(const GemmProblem& problem, const Gpu& gpu) {
  require_gemm_support(gpu);
  require_sizes(problem);
  Sm90GemmConfig best;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Tiling& tiling : kTilings) {
    const Sm90GemmConfig config = configure(problem, tiling, gpu);
    if (config.invalid_reason() != nullptr) continue;
    const std::int64_t clocks = predicted_clocks(problem, config, tiling, gpu);
    if (clocks < least) {
      least = clocks;
      best = config;
    }
  }
  if (least == std::numeric_limits<std::int64_t>::max()) {
    core::fail(ErrorCode::kInternal, "gemm: no tiling for {}", describe(problem));
  }
  return plan_config(problem, best, gpu);
}

GemmPlan plan_gemm(const GemmProblem& problem, const Gpu& gpu, std::string_view candidate) {
  require_gemm_support(gpu);
  require_sizes(problem);
  std::vector<std::string> names;
  for (const auto& [name, config] : gemm_candidates(problem, gpu)) {
    if (name == candidate) return plan_config(problem, config, gpu);
    names.push_back(name);
  }
  core::fail_argument("gemm", "candidate", core::format("one of {}", fmt::join(names, ", ")),
                      candidate);
}

std::vector<GemmCandidate> gemm_candidates(const GemmProblem& problem, const Gpu& gpu) {
  std::vector<GemmCandidate> candidates;
  for (const Tiling& tiling : kTilings) {
    const Sm90GemmConfig config = configure(problem, tiling, gpu);
    // Without promotion tilings that differ in their order alone are one.
    if (config.invalid_reason() != nullptr ||
        std::ranges::find(candidates, config, &GemmCandidate::config) != candidates.end()) {
      continue;
    }
    candidates.push_back({name_of(config), config});
  }
  return candidates;
}

void require_gemm_support(const Gpu& gpu) {
  if (supports_gemm(gpu)) return;
  core::fail(ErrorCode::kUnsupported,
             "gemm: no kernel for compute capability {}.{}: FP8 products run on 9.0 (H100, H200), "
             "and on the CPU backend, which takes the same tensors in host memory",
             gpu.compute_major, gpu.compute_minor);
}

}  // namespace octofold::plan
