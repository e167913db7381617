// What every operation that casts checks, whatever it casts: its targets and options.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "octofold/casts.h"

#include "core/check.h"
#include "kernels/cast/config/cast.h"

namespace octofold::ops {

/// What is read while targets are written.
struct CastInput {
  std::string_view argument;
  TensorView view;  ///< a matrix
};

std::span<const std::int64_t> shape_of(const TensorView& tensor);

/// A target as matrices, checked against `shape`, that of its codes; as below. Of a stack of
/// `matrices`, whose scales have the shapes of CastTargets::matrices, as one matrix.
MutableScaledTensorView checked_target(const core::Arguments& check, const std::string& argument,
                                       const MutableScaledTensorView& target,
                                       std::span<const std::int64_t> shape,
                                       std::span<const CastInput> inputs, ScaleSource scales,
                                       std::optional<std::int64_t> matrices = {});

/// The targets as matrices: codes of `shape` [..., K], and of its transpose [K, rows]; on the
/// device of the inputs, of which there is at least one, and apart from all of them; with what is
/// wanted of columns, likewise. With offsets the transpose has their layout; on the CPU their
/// values are checked too. `takes_stacks`: whether the operation knows CastTargets::matrices; codes
/// and scales of a stack become those of one matrix each.
CastTargets checked_targets(const core::Arguments& check, const CastTargets& out,
                            std::span<const std::int64_t> shape, std::span<const CastInput> given,
                            ScaleSource scales, bool takes_stacks = false);

/// What is computed for checked targets, from values of dtype `in`.
config::CastFormat format_of(const core::Arguments& check, const QuantizeOptions& options, DType in,
                             const CastTargets& out);

}  // namespace octofold::ops
