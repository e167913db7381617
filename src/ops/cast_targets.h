// Checks of what a cast writes.
#pragma once

#include <cstdint>
#include <span>

#include "octofold/cast_targets.h"

#include "core/check.h"
#include "kernels/cast/config/cast.h"
#include "ops/inputs.h"

namespace octofold::ops {

/// The matrix that is cast, as its targets see it.
struct CastShape {
  std::span<const std::int64_t> shape;  ///< [..., K]
  std::span<const CastInput> inputs;    ///< all that is read or written for it, one at least
  bool is_plain = false;                ///< a matrix as it is: what stacks are made of
};

/// The targets as matrices, codes of the shape [..., K] and of its transpose [K, rows]; on the
/// device of the inputs, with which they join `memory`, to be held apart there, with what is
/// wanted of columns. With offsets the transpose has their layout; on the CPU their values are
/// checked too. Codes and scales of a stack become those of one matrix each.
CastTargets checked_targets(const core::Arguments& check, const CastTargets& given,
                            const CastShape& source, Inputs& memory);

/// The computation for checked targets, from values of dtype `in`. The granularity is that of rows
/// where there are any.
config::CastFormat format_of(const core::Arguments& check, const CastTargets& targets, DType in);

}  // namespace octofold::ops
