#include "plan/cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>
#include <utility>

#include "core/check.h"
#include "kernels/config/arithmetic.h"

namespace octofold::plan {
namespace {

using config::CastConfig;
using config::CastDirection;
using config::CastStep;
using config::ceil_divide;
using config::ConvertConfig;

void require_support(std::string_view operation, const Gpu& gpu) {
  if (gpu.compute_major >= 9) return;
  core::fail(
      ErrorCode::kUnsupported,
      "{}: expected a GPU of compute capability 9.0 or later, whose instructions convert FP8, "
      "got {}.{}; tensors on the CPU are served by the CPU backend",
      operation, gpu.compute_major, gpu.compute_minor);
}

// CUDA's limit for the first dimension of a grid.
void require_launchable(std::string_view operation, std::int64_t blocks, std::int64_t rows,
                        std::int64_t cols) {
  if (blocks <= std::numeric_limits<std::int32_t>::max()) return;
  core::fail(ErrorCode::kUnsupported, "{}: expected fewer than 2^31 tiles, got a matrix {}×{}",
             operation, rows, cols);
}

// Fields that a step does not read keep their defaults, so that casts share its kernel.
CastConfig config_of_step(CastStep step, const CastProblem& problem) {
  CastConfig config{.step = step, .unit = problem.unit, .direction = problem.direction};
  const bool reads = step != CastStep::kClear && step != CastStep::kFinish;
  const bool writes_codes = reads && step != CastStep::kAmax;
  if (reads) {
    config.in = problem.in;
    config.vector_loads = problem.x_is_aligned && problem.cols % config.vector() == 0;
  }
  if (writes_codes) {
    const bool rows_fit = !config.has_rows() || problem.cols % config.vector() == 0;
    const bool transposed_rows_fit = !config.has_transposed() || problem.rows % 8 == 0;
    config.vector_stores = problem.codes_are_aligned && rows_fit && transposed_rows_fit;
    config.saturate = problem.saturate;
  }
  if (writes_codes || step == CastStep::kFinish) {
    config.out = problem.out;
    config.rule = problem.rule;
    config.power_of_two = problem.power_of_two;
    if (config.rule.reads_type()) config.in = problem.in;
  }
  return config;
}

CastLaunch launch_tiles(CastConfig config, const CastProblem& problem) {
  // A small tile has its loads back early; transposes and square units need all 128 rows.
  if (!config.has_transposed() && config.unit != Granularity::kBlock128x128) {
    config.tile_rows = 32;
    config.rows_per_thread = 4;
  }
  const std::int64_t down = ceil_divide(problem.rows, config.tile_rows);
  // Tiles below each other write to the same rows of the transpose.
  if (config.has_transposed() && down > 1) config.raster_rows = 2;
  return {config, down * ceil_divide(problem.cols, kScaleBlock)};
}

// Whether the shared memory of a cluster holds a row of `bytes`; if so, config says how. Rather
// three blocks to a multiprocessor than one, and rather few to a row.
bool fits_cluster(std::int64_t bytes, const Gpu& gpu, CastConfig& config) {
  constexpr int kForThree = 36 * 1024, kForOne = 111 * 1024;
  for (const int part_bytes : {kForThree, kForOne}) {
    if (CastConfig::kStages * part_bytes > gpu.shared_memory_per_block) continue;
    for (const int blocks : {2, 4, 8}) {
      if (ceil_divide(bytes, 16 * blocks) * 16 > part_bytes) continue;
      config.part_bytes = part_bytes;
      config.blocks_per_row = blocks;
      return true;
    }
  }
  return false;
}

// As few threads as hold a row: they exchange less, and other rows fill the machine. Accesses
// element by element leave no registers for many.
CastLaunch launch_rows(CastConfig config, const CastProblem& problem, const Gpu& gpu) {
  constexpr int kMostVectors = 8;
  const int most_threads = config.vector_loads && config.vector_stores ? 512 : 256;
  const std::int64_t vectors = ceil_divide(problem.cols, config.vector());
  config.reread = vectors > kMostVectors * most_threads;
  if (config.reread && config.vector_loads && fits_cluster(vectors * 16, gpu, config)) {
    config.reread = false;
    config.step = CastStep::kWideRows;
    return {config, problem.rows * config.blocks_per_row};
  }
  config.threads_per_row = vectors <= 4 * 32               ? 32
                           : vectors <= kMostVectors * 256 ? 256
                                                           : most_threads;
  const std::int64_t needed = ceil_divide(vectors, config.threads_per_row);
  config.vectors_per_thread = static_cast<int>(
      std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>(needed, 1, kMostVectors))));
  return {config, ceil_divide(problem.rows, config.rows_per_block())};
}

CastLaunch launch_scales(const CastConfig& config, const CastProblem& problem) {
  std::int64_t units = 1;
  if (config.unit == Granularity::kChannel) {
    units =
        std::max(config.has_rows() ? problem.rows : 0, config.has_transposed() ? problem.cols : 0);
  }
  return {config, ceil_divide(units, config.threads())};
}

CastLaunch launch_step(CastStep step, const CastProblem& problem, const Gpu& gpu) {
  const CastConfig config = config_of_step(step, problem);
  switch (step) {
    case CastStep::kTiles:
    case CastStep::kAmax:
    case CastStep::kEncode: return launch_tiles(config, problem);
    case CastStep::kRows:
    case CastStep::kWideRows: return launch_rows(config, problem, gpu);
    case CastStep::kClear:
    case CastStep::kFinish: return launch_scales(config, problem);
  }
  return {};
}

std::span<const CastStep> steps_of(const CastProblem& problem) {
  static constexpr std::array kTiles{CastStep::kTiles};
  static constexpr std::array kRows{CastStep::kRows};
  static constexpr std::array kFour{CastStep::kClear, CastStep::kAmax, CastStep::kEncode,
                                    CastStep::kFinish};
  switch (problem.unit) {
    case Granularity::kBlock1x128:
    case Granularity::kBlock128x128: return kTiles;
    case Granularity::kChannel:
      if (problem.direction == CastDirection::kRows) return kRows;
      return kFour;
    case Granularity::kTensor: return kFour;
  }
  return {};
}

}  // namespace

std::vector<CastLaunch> cast_launches(const CastProblem& problem, const Gpu& gpu) {
  require_support("quantize", gpu);
  std::vector<CastLaunch> launches;
  for (const CastStep step : steps_of(problem)) {
    const CastLaunch launch = launch_step(step, problem, gpu);
    if (launch.blocks == 0) continue;
    require_launchable("quantize", launch.blocks, problem.rows, problem.cols);
    launches.push_back(launch);
  }
  return launches;
}

CastPlan plan_cast(const CastProblem& problem, const Gpu& gpu) {
  CastPlan plan;
  for (const auto& [config, blocks] : cast_launches(problem, gpu)) {
    KernelPlan kernel = kernel_plan("cast", kCastHeader, kCastKernel, config, blocks);
    kernel.cluster_size = config.blocks_per_row;
    kernel.shared_bytes = config.shared_bytes();
    kernel.as_many_as_run = config.is_persistent();
    plan.kernels.push_back(std::move(kernel));
  }
  return plan;
}

ConvertPlan plan_convert(const ConvertProblem& problem, const Gpu& gpu) {
  const char* operation = problem.scaled ? "dequantize" : "convert";
  require_support(operation, gpu);
  ConvertConfig config{.in = problem.in, .out = problem.out, .scaled = problem.scaled};
  if (problem.scaled) config.unit = problem.unit;
  if (is_fp8(problem.out)) config.saturate = problem.saturate;
  config.vectors = problem.is_aligned && problem.cols % config.vector() == 0;
  // Few threads along short rows, one row per thread where there are few rows.
  config.threads_x = problem.cols <= 64 * config.vector() ? 16 : 256;
  config.threads_y = 256 / config.threads_x;
  config.rows_per_thread = problem.rows >= 4 * config.threads_y ? 4 : 1;
  const std::int64_t blocks =
      ceil_divide(problem.rows, config.tile_rows()) * ceil_divide(problem.cols, config.tile_cols());
  require_launchable(operation, blocks, problem.rows, problem.cols);
  ConvertPlan plan{.config = config};
  if (blocks > 0) {
    plan.kernels.push_back(kernel_plan(operation, kConvertHeader, kConvertKernel, config, blocks));
  }
  return plan;
}

}  // namespace octofold::plan
