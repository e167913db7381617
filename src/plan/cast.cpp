#include "plan/cast.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "core/check.h"
#include "kernels/shared/arithmetic.h"
#include "kernels/shared/group_bounds.h"
#include "plan/capability.h"

namespace octofold::plan {
namespace {

using config::CastFormat;
using config::CastPhase;
using config::ceil_divide;
using config::ColumnReductionConfig;
using config::ConvertConfig;
using config::RowCastConfig;
using config::ScaleStep;
using config::ScaleStepConfig;
using config::TileCastConfig;
using config::WideRowCastConfig;

bool loads_fit(const CastProblem& problem) {
  const int parts = problem.source.casts_halves() ? 2 : 1;
  return problem.x_is_aligned && problem.cols % (parts * problem.format.vector()) == 0;
}

// True if several matrices are more than the rows of one: a transpose each, a scale each, squares
// that end with each, or each cast only where it is used. In a batch all are stacks, maybe of one.
bool is_stack(const CastProblem& problem) {
  if (problem.skips_unused || problem.batched) return true;
  if (problem.matrices == 1) return false;
  const Granularity granularity = problem.format.granularity;
  return problem.to_transposed || granularity == Granularity::kTensor ||
         (granularity == Granularity::kBlock128x128 && problem.rows_of_matrix() % kScaleBlock != 0);
}

// Rows of the transpose are those of a matrix, however many: their last codes are stored alone.
bool stores_fit(const CastProblem& problem) {
  return problem.codes_are_aligned &&
         (!problem.to_rows || problem.cols % problem.format.vector() == 0);
}

// Fields of the format that a phase does not read keep defaults, so that casts share its kernel.
CastFormat format_of(const CastFormat& format, CastPhase phase) {
  switch (phase) {
    case CastPhase::kWhole:
    case CastPhase::kWholeRows:
    case CastPhase::kEncode: return format;
    case CastPhase::kAmax: return {.in = format.in, .granularity = format.granularity};
    case CastPhase::kEncodeGiven: {  // the rule says how codes are made, no scale
      const bool divides = config::divides(format.rule.arithmetic);
      return {.in = format.in,
              .out = format.out,
              .granularity = format.granularity,
              .rule = {.arithmetic =
                           divides ? format.rule.arithmetic : config::CastArithmetic::kReciprocal,
                       .rounding = config::PowerOfTwoRounding::kCeil},
              .saturate = format.saturate};
    }
  }
  return format;
}

CastFormat format_of(const CastFormat& format, ScaleStep step) {
  if (step != ScaleStep::kFinish) return {.granularity = format.granularity};
  CastFormat of_scales = format;
  of_scales.saturate = CastFormat{}.saturate;
  if (!format.rule.reads_type()) of_scales.in = CastFormat{}.in;
  return of_scales;
}

// With largest magnitudes given, most kernels are the same as for found ones. Divisions are not,
// which count on values up to the largest, nor kernels that hold a tensor's once for both targets.
bool amax_makes_another_kernel(const CastProblem& problem) {
  const bool divides = problem.format.rule.arithmetic == config::CastArithmetic::kDivide;
  const bool holds_two = problem.format.granularity == Granularity::kTensor && problem.to_rows &&
                         problem.to_transposed;
  return problem.amax_given && (divides || holds_two);
}

// Values that a GPU's shared memory cannot hold are not staged: halves one after the other, else
// element by element.
void fit(TileCastConfig& config, const Gpu& gpu) {
  if (config.shared_bytes() > gpu.shared_memory_per_block) config.source.both_halves = false;
  if (config.shared_bytes() > gpu.shared_memory_per_block) config.vector_loads = false;
}

CastLaunch launch_tiles(const CastProblem& problem, CastPhase phase, const Gpu& gpu) {
  TileCastConfig config{.format = format_of(problem.format, phase),
                        .source = problem.source,
                        .phase = phase,
                        .transposed_squares = problem.transposed_by_squares,
                        .amax_given = amax_makes_another_kernel(problem),
                        .to_rows = problem.to_rows,
                        .to_transposed = problem.to_transposed,
                        .vector_loads = loads_fit(problem),
                        .grouped = problem.groups > 0,
                        .stacked = is_stack(problem),
                        .skips_unused = problem.skips_unused};
  if (phase != CastPhase::kAmax) {
    config.vector_stores = stores_fit(problem);
    config.ragged = config.vector_stores && config.to_transposed && !config.grouped &&
                    problem.rows_of_matrix() % 8 != 0;
  }
  config.source.both_halves = problem.source.casts_halves() && config.vector_loads &&
                              size_of(problem.format.in) == 2 &&
                              problem.cols % (2 * kScaleBlock) == 0;
  // By the first kernel that reads all of x.
  if (problem.amax_given || (phase != CastPhase::kWholeRows && phase != CastPhase::kEncode)) {
    config.columns = problem.columns;
  }
  // A small tile has its loads back early; transposes, square units, the workspace of columns and
  // the count of a matrix's tiles (CastParams::matrix_tiles) need all 128 rows.
  if (!config.to_transposed && config.format.granularity != Granularity::kBlock128x128 &&
      !config.columns.any() && !config.stacked) {
    config.tile_rows = config.works_out() ? 64 : 32;
    config.rows_per_thread = config.works_out() ? 8 : 4;
  }
  fit(config, gpu);
  const std::int64_t down =
      config.grouped
          ? config::blocks_before_group(problem.group_layout, problem.rows, problem.groups)
      : config.stacked ? problem.matrices * ceil_divide(problem.rows_of_matrix(), config.tile_rows)
                       : ceil_divide(problem.rows, config.tile_rows);
  // Tiles below each other write to the same rows of the transpose.
  if (config.to_transposed && down > 1) config.group_m = 2;
  const std::int64_t across = ceil_divide(problem.cols / config.source.parts(), kScaleBlock);
  return {config, down * across};
}

// Rows of so many vectors by clusters, if the GPU has these and the shared memory of one holds a
// row. Rather three blocks to a multiprocessor than one, and rather few to a row.
std::optional<CastLaunch> launch_wide_rows(const CastProblem& problem, std::int64_t vectors,
                                           const Gpu& gpu) {
  if (gpu.compute_capability() < 90 || problem.skips_unused) return std::nullopt;
  if (problem.source.kind != config::SourceKind::kPlain || !loads_fit(problem)) return std::nullopt;
  constexpr int kForThree = 36 * 1024, kForOne = 111 * 1024;
  for (const int part_bytes : {kForThree, kForOne}) {
    if (WideRowCastConfig::kStages * part_bytes > gpu.shared_memory_per_block) continue;
    for (const int blocks : {2, 4, 8}) {
      if (ceil_divide(vectors, blocks) * 16 > part_bytes) continue;
      const WideRowCastConfig config{.format = problem.format,
                                     .vector_stores = stores_fit(problem),
                                     .blocks_per_row = blocks,
                                     .part_bytes = part_bytes};
      return CastLaunch{config, problem.rows * blocks};
    }
  }
  return std::nullopt;
}

// Launches as few threads as hold a row: they exchange less, and other rows fill the machine.
// Accesses element by element leave no registers for many.
CastLaunch launch_rows(const CastProblem& problem, const Gpu& gpu) {
  constexpr int kMostVectors = 8;
  RowCastConfig config{.format = problem.format,
                       .source = problem.source,
                       .vector_loads = loads_fit(problem),
                       .vector_stores = stores_fit(problem),
                       .skips_unused = problem.skips_unused};
  const int most_threads = config.vector_loads && config.vector_stores ? 512 : 256;
  const std::int64_t vectors = ceil_divide(problem.cols, problem.format.vector());
  if (vectors > kMostVectors * most_threads) {
    if (const auto wide = launch_wide_rows(problem, vectors, gpu)) return *wide;
    config.reread = true;
  }
  config.threads_per_row = vectors <= 4 * 32               ? 32
                           : vectors <= kMostVectors * 256 ? 256
                                                           : most_threads;
  const std::int64_t needed = ceil_divide(vectors, config.threads_per_row);
  config.vectors_per_thread = static_cast<int>(
      std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>(needed, 1, kMostVectors))));
  return {config, ceil_divide(problem.rows, config.rows_per_block())};
}

CastLaunch launch_scales(const CastProblem& problem, ScaleStep step) {
  // Rows that have scales of their own, but are not cast, are left alone.
  const bool rows_differ = problem.to_rows && problem.format.granularity == Granularity::kChannel;
  const bool gathers = problem.source.kind == config::SourceKind::kGathered;
  const ScaleStepConfig config{.format = format_of(problem.format, step),
                               .step = step,
                               .to_rows = problem.to_rows,
                               .to_transposed = problem.to_transposed,
                               .grouped = rows_differ && problem.groups > 0,
                               .gathered = rows_differ && gathers,
                               .stacked = is_stack(problem),
                               .skips_unused = problem.skips_unused};
  std::int64_t units = problem.matrices;
  if (problem.format.granularity != Granularity::kTensor) {
    units = std::max(config.to_rows ? problem.rows : 0,
                     config.to_transposed ? problem.matrices * problem.cols : 0);
  }
  return {config, ceil_divide(units, config.threads())};
}

CastLaunch launch_columns(const CastProblem& problem) {
  return {ColumnReductionConfig{.columns = problem.columns},
          ceil_divide(problem.cols, ColumnReductionConfig::kColumns)};
}

// The steps if a whole unit does not fit into a block of threads: `found` are the units whose
// largest magnitudes scale tensors hold, before codes are cast by them.
std::vector<CastLaunch> steps_around(CastPhase encode, const CastProblem& problem,
                                     const CastProblem& found, const Gpu& gpu) {
  const CastLaunch codes = launch_tiles(problem, encode, gpu);
  const CastLaunch finish = launch_scales(found, ScaleStep::kFinish);
  if (problem.amax_given) return {launch_scales(found, ScaleStep::kTake), codes, finish};
  return {launch_scales(found, ScaleStep::kClear), launch_tiles(found, CastPhase::kAmax, gpu),
          codes, finish};
}

// A transpose whose rows have one scale each, beside rows of 1x128, where few tiles have all of a
// row: a tile of up to 128 elements, for which a block of 1x128 is the same, or a cluster of tiles.
std::optional<CastLaunch> launch_whole_channels(const CastProblem& problem, const Gpu& gpu) {
  if (problem.amax_given || problem.batched || problem.groups > 0 || is_stack(problem)) {
    return std::nullopt;
  }
  const std::int64_t tiles = ceil_divide(problem.rows, std::int64_t{kScaleBlock});
  const bool clustered = tiles > 1;
  if (tiles == 0) return std::nullopt;  // scales are written all the same
  if (clustered && (gpu.compute_capability() < 90 || tiles > config::kMostClusterTiles ||
                    problem.source.kind != config::SourceKind::kPlain)) {
    return std::nullopt;
  }
  CastProblem blocks = problem;
  blocks.transposed_by_channel = false;
  CastLaunch launch = launch_tiles(blocks, CastPhase::kWhole, gpu);
  if (clustered) {
    std::get<TileCastConfig>(launch.config).cluster_tiles = static_cast<int>(tiles);
  }
  return launch;
}

// Scales that are known before x is read, that a tile finds, that a row finds, and others. Only
// tiles reduce columns.
std::vector<CastLaunch> cast_steps(const CastProblem& problem, const Gpu& gpu) {
  if (problem.scales_given) return {launch_tiles(problem, CastPhase::kEncodeGiven, gpu)};
  if (problem.transposed_by_channel) {
    if (const auto whole = launch_whole_channels(problem, gpu)) return {*whole};
    CastProblem transposed = problem;
    transposed.format.granularity = Granularity::kChannel;
    transposed.to_rows = transposed.transposed_by_channel = false;
    // The factors of the transpose alone are all that there are.
    transposed.source.factors |= std::exchange(transposed.source.transposed_factors, false);
    return steps_around(CastPhase::kWholeRows, problem, transposed, gpu);
  }
  if (problem.format.scales_blocks()) return {launch_tiles(problem, CastPhase::kWhole, gpu)};
  if (problem.format.granularity == Granularity::kChannel && !problem.to_transposed &&
      !problem.columns.any() && !problem.amax_given && !problem.batched) {
    return {launch_rows(problem, gpu)};
  }
  return steps_around(CastPhase::kEncode, problem, problem, gpu);
}

template <typename Config>
KernelPlan kernel_of(const Config& config, std::int64_t blocks) {
  return kernel_plan("cast", Config::kHeader, Config::kKernel, config, blocks);
}

KernelPlan kernel_of(const TileCastConfig& config, std::int64_t blocks) {
  KernelPlan kernel = kernel_of<>(config, blocks);
  kernel.cluster_size = config.cluster_tiles;
  kernel.shared_bytes = config.shared_bytes();
  return kernel;
}

KernelPlan kernel_of(const WideRowCastConfig& config, std::int64_t blocks) {
  KernelPlan kernel = kernel_of<>(config, blocks);
  kernel.cluster_size = config.blocks_per_row;
  kernel.shared_bytes = config.shared_bytes();
  kernel.as_many_as_run = true;
  return kernel;
}

}  // namespace

// CUDA's limit for the first dimension of a grid.
void require_launchable(std::string_view operation, std::int64_t blocks, std::int64_t rows,
                        std::int64_t cols) {
  if (blocks <= std::numeric_limits<std::int32_t>::max()) return;
  core::fail(ErrorCode::kUnsupported, "{}: expected fewer than 2^31 tiles, got a matrix {}×{}",
             operation, rows, cols);
}

std::vector<CastLaunch> cast_launches(const CastProblem& problem, const Gpu& gpu) {
  require_kernels(Operation::kCast, "cast", gpu);
  std::vector<CastLaunch> launches = cast_steps(problem, gpu);
  if (problem.columns.any() && !problem.has_whole_columns()) {
    launches.push_back(launch_columns(problem));
  }
  std::erase_if(launches, [](const CastLaunch& launch) { return launch.blocks == 0; });
  for (const CastLaunch& launch : launches) {
    require_launchable("cast", launch.blocks, problem.rows, problem.cols);
  }
  return launches;
}

CastPlan plan_cast(const CastProblem& problem, const Gpu& gpu) {
  CastPlan plan;
  for (const CastLaunch& launch : cast_launches(problem, gpu)) {
    plan.kernels.push_back(std::visit(
        [&](const auto& config) { return kernel_of(config, launch.blocks); }, launch.config));
  }
  return plan;
}

CastPlan plan_values(const CastProblem& problem, const Gpu& gpu) {
  constexpr const char* kOperation = "an activation";
  require_kernels(Operation::kCast, kOperation, gpu);
  const config::ValuesConfig config{.in = problem.format.in,
                                    .source = problem.source,
                                    .vectors = loads_fit(problem) && problem.codes_are_aligned};
  const std::int64_t vectors =
      problem.rows * ceil_divide(problem.cols, std::int64_t{config.vector()});
  const std::int64_t blocks = ceil_divide(vectors, std::int64_t{config.threads()});
  require_launchable(kOperation, blocks, problem.rows, problem.cols);
  CastPlan plan;
  if (blocks > 0) {
    plan.kernels.push_back(kernel_plan(kOperation, config.kHeader, config.kKernel, config, blocks));
  }
  return plan;
}

ConvertPlan plan_convert(const ConvertProblem& problem, const Gpu& gpu) {
  const char* operation = problem.scaled ? "dequantize" : "convert_dtype";
  require_kernels(Operation::kCast, operation, gpu);
  ConvertConfig config{.in = problem.in, .out = problem.out, .scaled = problem.scaled};
  if (problem.scaled) config.granularity = problem.granularity;
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
    plan.kernels.push_back(
        kernel_plan(operation, ConvertConfig::kHeader, ConvertConfig::kKernel, config, blocks));
  }
  return plan;
}

}  // namespace octofold::plan
