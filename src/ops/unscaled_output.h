// A result of numbers that has the shape of its input.
#pragma once

#include <span>

#include "octofold/tensor.h"

#include "core/check.h"
#include "core/flatten.h"

namespace octofold::ops {

/// Returns a checked out as a matrix; `x` is flat, `shape` its own.
inline MutableTensorView checked_output(const core::Arguments& check, const MutableTensorView& out,
                                        std::span<const std::int64_t> shape, const TensorView& x) {
  check.require_shape("out", out, shape);
  const MutableTensorView target = core::flatten(check, "out", out);
  check.require_matrix("out", target);
  check.require_same_device("out", target, x.device);
  check.require_disjoint("out", target, "x", x);
  return target;
}

}  // namespace octofold::ops
