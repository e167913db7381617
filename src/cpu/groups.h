// Parts of matrices, and what each group of a product has of them.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "octofold/tensor.h"

#include "core/product.h"
#include "kernels/shared/group_bounds.h"

namespace octofold::cpu {

/// The same view so many elements further.
template <typename View>
View moved(View tensor, std::int64_t elements) {
  using Byte = std::conditional_t<std::is_same_v<decltype(tensor.data), void*>, char, const char>;
  tensor.data = static_cast<Byte*>(tensor.data) + elements * size_of(tensor.dtype);
  return tensor;
}

template <typename View>
View rows_of(View matrix, std::int64_t begin, std::int64_t end) {
  matrix = moved(matrix, begin * matrix.strides[0]);
  matrix.shape[0] = end - begin;
  return matrix;
}

/// The rows of a group's matrix among those of all, with the scales that are its own.
inline ScaledTensorView matrix_of_group(const core::Groups& groups, ScaledTensorView all,
                                        std::int64_t group) {
  const std::int64_t rows = all.data.shape[0] / groups.count;
  all.data = rows_of(all.data, group * rows, (group + 1) * rows);
  all.scale.data = static_cast<const float*>(all.scale.data) + group * groups.scale_stride;
  return all;
}

/// The bounds of one group of a product whose rows are in groups.
inline config::GroupBounds rows_of_group(const core::Groups& groups, std::int64_t group) {
  if (groups.work == config::Work::kGroupedRows) {
    return {groups.numbers[group], groups.numbers[group + 1]};
  }
  const auto begin = static_cast<std::int32_t>(group * groups.max_rows);
  return {begin, begin + groups.numbers[group]};
}

/// A group's part of a bias [count · columns].
inline std::optional<TensorView> bias_of_group(const std::optional<TensorView>& bias,
                                               std::int64_t group, std::int64_t columns) {
  if (!bias) return std::nullopt;
  TensorView own = moved(*bias, group * columns);
  own.shape[0] = columns;
  return own;
}

}  // namespace octofold::cpu
