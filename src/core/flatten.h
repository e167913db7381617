// Tensors with leading dimensions, [..., K], as the matrices [rows, K] that operations work on:
// over the same memory, a vector being one row.
#pragma once

#include <string_view>

#include "octofold/cast_targets.h"
#include "octofold/tensor.h"

#include "core/check.h"

namespace octofold::core {

/// Fails, naming the argument, where there is no dimension or the leading ones' strides do not
/// compose.
TensorView flatten(const Arguments& check, std::string_view argument, const TensorView& tensor);
MutableTensorView flatten(const Arguments& check, std::string_view argument,
                          const MutableTensorView& tensor);

/// The same of codes, and of their scales (and an amax) where these have leading dimensions too:
/// what Arguments::require_scaled() takes, if the scale has one of the shapes that cast_targets.h
/// allows.
ScaledTensorView flatten(const Arguments& check, std::string_view argument,
                         const ScaledTensorView& tensor);
CastTarget flatten(const Arguments& check, std::string_view argument, const CastTarget& target);

/// The same of a stack of so many matrices (CastTargets::matrices), whose scales have to be those
/// of one.
ScaledTensorView flatten_stack(const Arguments& check, std::string_view argument,
                               const ScaledTensorView& stack, std::int64_t matrices);
CastTarget flatten_stack(const Arguments& check, std::string_view argument, const CastTarget& stack,
                         std::int64_t matrices);

}  // namespace octofold::core
