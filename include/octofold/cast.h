// The cast to FP8: what is read times what is written.
#pragma once

#include <cstdint>
#include <span>

#include "octofold/cast_sources.h"
#include "octofold/cast_targets.h"
#include "octofold/export.h"
#include "octofold/stream.h"

namespace octofold {

/// Casts the source to FP8 with one FP32 scale per unit of each target, and writes codes and
/// scales. Whatever the source, they have the bits that a cast of the same matrix in memory has, on
/// the same device.
///
/// NaN and Inf follow IEEE rules through the arithmetic of the rule.
/// Throws Error: kInvalidArgument for wrong dtypes, shapes, strides or overlapping memory, and for
/// targets that do not go together; on a GPU kUnsupported where there are no kernels, kUnavailable
/// without a usable driver or compiler.
OCTOFOLD_API void cast(const CastSource& source, const CastTargets& targets, Stream stream = {});

/// One of many casts: a matrix, or a stack of them, and what is written.
struct CastJob {
  TensorView source;
  CastTargets targets;
};

/// Casts each of the sources as cast() does, byte for byte. They are all on one device, and what
/// one of them writes is nothing that another one reads or writes.
///
/// On a GPU casts of one kind (dtypes, granularities, rule) share a launch, up to 27 of them in
/// each: the casts of all weights of a model after a step of its optimizer. (With scales of
/// tensors, and of channels that are transposed, it is four launches, as cast() has for one.) Casts
/// that cast() makes with reductions of columns, offsets, `used`, two-level scales or an amax are
/// queued one by one. Nothing is kept: a CUDA graph that captures the call holds all of it.
///
/// Throws as cast() does; the message has the number of the job.
OCTOFOLD_API void cast_many(std::span<const CastJob> jobs, Stream stream = {});

/// The number of rows of the workspace of ColumnTargets, for a source of `rows` rows.
OCTOFOLD_API std::int64_t column_workspace_rows(std::int64_t rows, bool sums, bool amax);

/// The number of columns of a transpose of `rows` rows in the K-group layout: 128 · (rows / 128 +
/// groups); of tight groups 128 · (rows / 128).
OCTOFOLD_API std::int64_t group_columns(std::int64_t rows, std::int64_t groups,
                                        GroupLayout layout = GroupLayout::kSpaced);

}  // namespace octofold
