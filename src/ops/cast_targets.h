// Checks of what a cast writes: one FP8 matrix, and all of a cast.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "octofold/cast_targets.h"

#include "core/check.h"
#include "kernels/cast/config/cast.h"
#include "ops/inputs.h"

namespace octofold::ops {

/// A target as matrices, checked against `shape`, that of its codes, and on the device. Of a stack
/// of `matrices`, whose scales have the shapes of CastTargets::matrices, as one matrix.
CastTarget checked_target(const core::Arguments& check, const std::string& argument,
                          const CastTarget& target, std::span<const std::int64_t> shape,
                          Device device, std::optional<std::int64_t> matrices = {});

/// The computation that a format prescribes for values of dtype `in`.
config::CastFormat format_of(const core::Arguments& check, const Format& format, DType in,
                             ScaleSource scales = ScaleSource::kComputed);

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
