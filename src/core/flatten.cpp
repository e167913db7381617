#include "core/flatten.h"

#include <algorithm>
#include <cstdint>
#include <fmt/ranges.h>
#include <span>
#include <string>

#include "core/scale_layout.h"

namespace octofold::core {
namespace {

// Several dimensions as one.
struct Merged {
  std::int64_t size = 1;
  std::int64_t stride = 0;
};

// The first `count` dimensions as one.
template <typename View>
Merged merge(const Arguments& check, std::string_view argument, const View& tensor,
             std::int32_t count) {
  Merged merged;
  std::int32_t inner = -1;  // the dimension that the next one outside has to continue
  for (std::int32_t i = count - 1; i >= 0; --i) {
    const std::int64_t size = tensor.shape[i];
    if (size != 1 && inner < 0) {
      inner = i;
      merged.stride = tensor.strides[i];
    } else if (size > 1 && merged.size > 0 && tensor.strides[i] != merged.size * merged.stride) {
      check.fail(argument,
                 "leading dimensions that are the rows of one matrix (reshape makes a copy)",
                 core::format("{}: dimension {} is not {} steps of dimension {}", describe(tensor),
                              i, merged.size, inner));
    }
    merged.size *= size;
  }
  return merged;
}

template <typename View>
View matrix_of(const Arguments& check, std::string_view argument, const View& tensor) {
  check.require_sizes(argument, tensor);
  if (tensor.rank < 1) check.fail(argument, "at least 1 dimension", describe(tensor));
  if (tensor.rank == 2) return tensor;
  const std::int32_t last = tensor.rank - 1;
  Merged rows = merge(check, argument, tensor, last);
  const std::int64_t cols = tensor.shape[last];
  // One row, or none: any stride is as good, and this one is of a contiguous matrix.
  if (rows.size <= 1) rows.stride = std::max<std::int64_t>(cols, 1);
  View matrix = tensor;
  matrix.rank = 2;
  matrix.shape = {rows.size, cols};
  matrix.strides = {rows.stride, tensor.strides[last]};
  return matrix;
}

template <typename View>
View vector_of(const View& tensor, const Merged& elements) {
  View vector = tensor;
  vector.rank = 1;
  vector.shape = {elements.size};
  vector.strides = {elements.stride};
  return vector;
}

// True if the shape is that of the data, up to the last dimension, which is `last`.
template <typename View, typename ScaledView>
bool has_leading_dimensions(const View& scale, const ScaledView& tensor, std::int32_t rank) {
  const std::int32_t leading = tensor.data.rank - 1;
  return rank == leading &&
         std::equal(scale.shape.begin(), scale.shape.begin() + leading, tensor.data.shape.begin());
}

// Flattens the scales of a tensor, or what has their shape. Whatever has none of the shapes with
// leading dimensions stays as it is.
template <typename View, typename ScaledView>
View flat_scale(const Arguments& check, std::string_view argument, const View& scale,
                const ScaledView& tensor) {
  check.require_sizes(argument, scale);
  const Granularity granularity = granularity_of(tensor);
  if (!scales_rows(granularity)) return scale;
  if (varies_along_k(granularity)) {
    const bool leads = has_leading_dimensions(scale, tensor, scale.rank - 1);
    return leads ? matrix_of(check, argument, scale) : scale;
  }
  const bool has_one_more = scale.rank == tensor.data.rank && scale.shape[scale.rank - 1] == 1;
  const std::int32_t rank = has_one_more ? scale.rank - 1 : scale.rank;
  if (!has_leading_dimensions(scale, tensor, rank)) return scale;
  return vector_of(scale, merge(check, argument, scale, rank));
}

template <typename ScaledView>
ScaledView flat_scaled(const Arguments& check, std::string_view argument,
                       const ScaledView& tensor) {
  ScaledView flat = tensor;
  flat.data = matrix_of(check, argument, tensor.data);
  flat.scale = flat_scale(check, std::string(argument) + ".scale", tensor.scale, tensor);
  if constexpr (requires { tensor.amax; }) {
    if (tensor.amax) {
      flat.amax = flat_scale(check, std::string(argument) + ".amax", *tensor.amax, tensor);
    }
  }
  return flat;
}

// Codes and scales of lines are those of one matrix.
template <typename ScaledView>
ScaledView flat_stack(const Arguments& check, std::string_view argument, const ScaledView& stack,
                      std::int64_t matrices) {
  ScaledView flat = flat_scaled(check, argument, stack);
  const Granularity granularity = granularity_of(stack);
  if (scales_rows(granularity)) return flat;
  const auto shape =
      stacked_scale_shape(granularity, matrices, flat.data.shape[0], flat.data.shape[1]);
  const std::string scale = std::string(argument) + ".scale";
  check.require_shape(scale, stack.scale, shape);
  if (varies_along_k(granularity)) flat.scale = matrix_of(check, scale, stack.scale);
  if constexpr (requires { stack.amax; }) {
    if (stack.amax) check.require_shape(std::string(argument) + ".amax", *stack.amax, shape);
  }
  return flat;
}

}  // namespace

TensorView flatten(const Arguments& check, std::string_view argument, const TensorView& tensor) {
  return matrix_of(check, argument, tensor);
}

MutableTensorView flatten(const Arguments& check, std::string_view argument,
                          const MutableTensorView& tensor) {
  return matrix_of(check, argument, tensor);
}

ScaledTensorView flatten(const Arguments& check, std::string_view argument,
                         const ScaledTensorView& tensor) {
  return flat_scaled(check, argument, tensor);
}

CastTarget flatten(const Arguments& check, std::string_view argument, const CastTarget& target) {
  return flat_scaled(check, argument, target);
}

ScaledTensorView flatten_stack(const Arguments& check, std::string_view argument,
                               const ScaledTensorView& stack, std::int64_t matrices) {
  return flat_stack(check, argument, stack, matrices);
}

CastTarget flatten_stack(const Arguments& check, std::string_view argument, const CastTarget& stack,
                         std::int64_t matrices) {
  return flat_stack(check, argument, stack, matrices);
}

}  // namespace octofold::core
