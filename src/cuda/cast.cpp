#include "plan/cast.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "core/scale_layout.h"
#include "cuda/backend.h"
#include "cuda/group_check.h"
#include "cuda/params.h"
#include "cuda/views.h"
#include "kernels/shared/group_bounds.h"

namespace octofold::cuda {
namespace {

using config::CastParams;
using config::SourceKind;
using plan::CastProblem;

// A cast on its way: the source fills in what is read, then the targets what is written.
struct Cast {
  CastProblem problem;
  CastParams params{};
};

// ---- What is read.

void read(const TensorView& x, Cast& cast) {
  auto& [problem, params] = cast;
  problem.rows = x.shape[0];
  problem.x_is_aligned = is_aligned(x, problem.source.bytes_of(0, problem.format.vector()));
  params.x = x.data;
  params.x_stride = x.strides[0];
}

void read(const ScaledTensorView& x, Cast& cast) {
  auto& [problem, params] = cast;
  problem.source = problem.source.of_codes(x.data.dtype, x.granularity);
  const core::ScaleAccess<const float> scale = core::scale_access(x);
  params.x_scale = scale.data;
  params.x_scale_row_stride = scale.row_stride;
  params.x_scale_col_stride = scale.col_stride;
  read(x.data, cast);
}

void read(const Activated& source, Cast& cast) {
  cast.problem.source =
      config::CastSource::of(SourceKind::kActivation, source.activation, source.layout);
  std::visit([&](const auto& x) { read(x, cast); }, source.x);
}

void read(const ActivationGradient& source, Cast& cast) {
  auto& [problem, params] = cast;
  problem.source =
      config::CastSource::of(SourceKind::kActivationGradient, source.activation, source.layout);
  std::visit([&](const auto& x) { read(x, cast); }, source.x);
  problem.x_is_aligned = problem.x_is_aligned && is_aligned(source.gradient, 16);
  params.gradient = source.gradient.data;
  params.gradient_stride = source.gradient.strides[0];
}

// The kernel before has left the statistics and the sum.
void read(const Normed& source, Cast& cast) {
  auto& [problem, params] = cast;
  const TensorView& x = source.x;
  problem.source = {.kind = SourceKind::kNormed,
                    .norm = form_of(source.kind, source.operands, x.dtype)};
  read(source.sum ? TensorView(*source.sum) : x, cast);
  problem.x_is_aligned = problem.x_is_aligned && operands_are_aligned(source.operands);
  params.rstd = static_cast<float*>(source.rstd.data);
  params.mean = floats_of(source.mean);
  params.norm = operands_of(source.operands, x.shape[0]);
}

void read(const GatheredRows& source, Cast& cast) {
  auto& [problem, params] = cast;
  problem.source = {.kind = SourceKind::kGathered,
                    .factors = source.factors.has_value(),
                    .transposed_factors = source.transposed_factors.has_value()};
  read(source.x, cast);
  problem.rows = source.sources.shape[0];
  params.sources = static_cast<const int*>(source.sources.data);
  params.factors = floats_of(source.factors ? source.factors : source.transposed_factors);
  params.places = places_of(source);
  params.slots = config::Divisor::of(static_cast<unsigned>(source.slots));
}

// ---- What is written.

std::int64_t cols_of(const CastTargets& targets) {
  if (targets.rows) return targets.rows->data.shape[1];
  return targets.transposed->data.shape[0] / targets.matrices.value_or(1);
}

// True if rows of 1x128 are written beside a transpose of another granularity.
bool is_mixed(const CastTargets& targets, Granularity transposed) {
  return targets.rows && targets.transposed &&
         targets.rows->format.granularity == Granularity::kBlock1x128 &&
         targets.transposed->format.granularity == transposed;
}

void write_columns(const ColumnTargets& columns, Cast& cast) {
  auto& [problem, params] = cast;
  problem.columns = {.sums = columns.sums.has_value(), .amax = columns.amax.has_value()};
  const std::int64_t partial = core::ceil_divide(problem.rows, config::kReducedRows) * problem.cols;
  config::ColumnReductionParams& written = params.columns;
  written.sums = floats_of(columns.sums);
  written.amax = floats_of(columns.amax);
  if (problem.has_whole_columns()) {  // then tiles write the results themselves
    written.partial_sums = written.sums;
    written.partial_amax = written.amax;
    return;
  }
  float* workspace = floats_of(columns.workspace);
  if (columns.sums) written.partial_sums = workspace;
  if (columns.amax) written.partial_amax = columns.sums ? workspace + partial : workspace;
}

// A transpose in the K-group layout.
void write_groups(const TensorView& offsets, GroupLayout layout, Cast& cast) {
  auto& [problem, params] = cast;
  problem.groups = offsets.shape[0] - 1;
  problem.group_layout = params.group_layout = layout;
  params.offsets = static_cast<const int*>(offsets.data);
  params.groups = static_cast<int>(problem.groups);
}

// Tiles below each other: at most those that a launch may have.
int tiles_of(std::int64_t matrix_rows) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return static_cast<int>(std::min(core::ceil_divide(matrix_rows, kScaleBlock), kMost));
}

void write_matrices(std::int64_t matrices, Cast& cast) {
  auto& [problem, params] = cast;
  problem.matrices = params.matrices = matrices;
  params.matrix_rows = problem.rows / matrices;
  params.matrix_tiles = tiles_of(params.matrix_rows);
  params.by_matrix_tiles =
      config::Divisor::of(static_cast<unsigned>(std::max(params.matrix_tiles, 1)));
}

void write(const CastTargets& targets, Cast& cast) {
  auto& [problem, params] = cast;
  const auto& [rows, transposed, columns, offsets, group_layout, matrices, used] = targets;
  problem.cols = cols_of(targets);
  problem.to_rows = rows.has_value();
  problem.to_transposed = transposed.has_value();
  problem.transposed_by_channel = is_mixed(targets, Granularity::kChannel);
  problem.transposed_by_squares = is_mixed(targets, Granularity::kBlock128x128);
  problem.scales_given = (rows ? rows : transposed)->scales == ScaleSource::kGiven;
  problem.amax_given = (transposed ? transposed : rows)->amax.has_value();
  problem.codes_are_aligned = codes_are_aligned(rows) && codes_are_aligned(transposed);
  params.rows = problem.rows;
  params.cols = problem.cols;
  params.row_target = target_of(rows);
  params.transposed_target = target_of(transposed);
  params.row_amax = amax_of(rows);
  params.transposed_amax = amax_of(transposed);
  write_columns(columns, cast);
  write_matrices(matrices.value_or(1), cast);
  if (offsets) write_groups(*offsets, group_layout, cast);
  if (used) {
    problem.skips_unused = true;
    params.used = static_cast<const int*>(used->data);
  }
}

Cast cast_of(const CastSource& source, const CastTargets& targets,
             const config::CastFormat& format) {
  Cast cast{.problem = {.format = format}};
  std::visit([&](const auto& each) { read(each, cast); }, source);
  write(targets, cast);
  return cast;
}

// ---- Many casts.

struct Job {
  CastProblem problem;
  config::CastJob params;
};

// The jobs of one kind.
struct Batch {
  CastProblem kind;
  std::vector<Job> jobs;
};

Job job_of(const Cast& cast) {
  const CastParams& params = cast.params;
  const config::CastJob job{.x = params.x,
                            .x_stride = params.x_stride,
                            .rows = params.rows,
                            .cols = params.cols,
                            .row_target = params.row_target,
                            .transposed_target = params.transposed_target,
                            .matrices = params.matrices,
                            .matrix_rows = params.matrix_rows,
                            .matrix_tiles = params.matrix_tiles,
                            .by_matrix_tiles = params.by_matrix_tiles};
  return {cast.problem, job};
}

CastBatch batch_of(std::span<const Job> jobs, const plan::CastConfig& kernel) {
  CastBatch batch;
  std::ranges::fill(batch.params.first_block, config::CastBatchParams::kNoBlock);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    batch.params.jobs[i] = jobs[i].params;
    batch.params.first_block[i] = static_cast<int>(batch.blocks);
    batch.blocks += plan::batch_blocks(kernel, jobs[i].problem);
  }
  return batch;
}

// The jobs that share a launch: the first ones, as far as parameters and a grid hold them.
std::span<const Job> first_of(std::span<const Job> jobs,
                              const std::vector<plan::CastConfig>& kernels) {
  std::size_t count = 0;
  std::vector<std::int64_t> blocks(kernels.size());
  for (; count < std::min<std::size_t>(jobs.size(), config::CastBatchParams::kMostJobs); ++count) {
    const CastProblem& problem = jobs[count].problem;
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      const std::int64_t own = plan::batch_blocks(kernels[i], problem);
      plan::require_launchable("cast_many", own, problem.rows, problem.cols);
      blocks[i] += own;
      if (blocks[i] >= config::CastBatchParams::kNoBlock && count > 0) return jobs.first(count);
    }
  }
  return jobs.first(count);
}

void launch(Device& device, const Batch& batch, Stream stream) {
  const auto prepared =
      device.prepared(batch.kind, [&] { return plan::plan_cast_batch(batch.kind, device.gpu()); });
  const std::vector<plan::CastConfig>& kernels = prepared.config.kernels;
  std::span<const Job> left = batch.jobs;
  while (!left.empty()) {
    const std::span<const Job> jobs = first_of(left, kernels);
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      const CastBatch shared = batch_of(jobs, kernels[i]);
      if (shared.blocks > 0) prepared.launch(i, shared.blocks, stream, &shared.params);
    }
    left = left.subspan(jobs.size());
  }
}

}  // namespace

CastParams params_of(const CastSource& source, const CastTargets& targets,
                     const config::CastFormat& format) {
  return cast_of(source, targets, format).params;
}

CastBatch batch_of(std::span<const CheckedCast> casts, const plan::CastConfig& kernel) {
  std::vector<Job> jobs;
  for (const CheckedCast& each : casts) {
    jobs.push_back(job_of(cast_of(each.source, each.targets, each.format)));
  }
  return batch_of(jobs, kernel);
}

void cast_many(Device& device, std::span<const CheckedCast> casts, Stream stream) {
  std::vector<Batch> batches;
  for (const CheckedCast& each : casts) {
    const Cast one = cast_of(each.source, each.targets, each.format);
    const std::optional<CastProblem> kind = plan::batch_kind(one.problem);
    if (!kind) {
      cast(device, each.source, each.targets, each.format, stream);
      continue;
    }
    auto batch = std::ranges::find(batches, *kind, &Batch::kind);
    if (batch == batches.end()) batch = batches.insert(batch, Batch{.kind = *kind, .jobs = {}});
    batch->jobs.push_back(job_of(one));
  }
  for (const Batch& batch : batches) launch(device, batch, stream);
}

void cast(Device& device, const CastSource& source, const CastTargets& targets,
          const config::CastFormat& format, Stream stream) {
  if (const auto* normed = std::get_if<Normed>(&source)) {
    if (normalize(device, *normed, targets, format, stream)) return;
  }
  const auto [problem, params] = cast_of(source, targets, format);
  if (targets.offsets) {
    check_offsets(device, "cast", "offsets", params.offsets, params.groups + 1, params.rows,
                  config::offset_unit(params.group_layout), stream);
  }
  if (targets.used) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    check_offsets(device, "cast", "used", params.used, params.matrices + 1, kMost, 1, stream);
  }
  device.prepared(problem, [&] { return plan::plan_cast(problem, device.gpu()); })
      .launch(stream, &params);
}

void values(Device& device, const CastSource& source, const MutableTensorView& out, Stream stream) {
  Cast cast{.problem = {.format = {.in = out.dtype}}};
  std::visit([&](const auto& each) { read(each, cast); }, source);
  auto& [problem, params] = cast;
  problem.cols = params.cols = out.shape[1];
  params.rows = problem.rows;
  problem.to_rows = problem.to_transposed = false;
  problem.codes_are_aligned = is_aligned(out, 16);
  params.row_target.codes = static_cast<unsigned char*>(out.data);
  params.row_target.codes_stride = out.strides[0];
  device.prepared(problem, [&] { return plan::plan_values(problem, device.gpu()); })
      .launch(stream, &params);
}

}  // namespace octofold::cuda
