// The layout of the scales of an FP8 matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "octofold/export.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

namespace octofold {

/// The shape of the scale tensor of a matrix [rows, cols]; vocabulary.h has the table.
/// Throws Error(kInvalidArgument) for negative sizes.
OCTOFOLD_API std::vector<std::int64_t> scale_shape(Granularity granularity, std::int64_t rows,
                                                   std::int64_t cols);

/// How Octofold itself lays out a scale tensor: its shape, and strides in elements.
struct ScaleLayout {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  /// Elements from the first to the one after the last, padding included. This and view() throw
  /// Error(kInvalidArgument) for an empty layout, as one has that was moved from.
  OCTOFOLD_API std::int64_t extent() const;
  /// A scale tensor of this layout over `data`.
  template <typename T>
  detail::ViewOf<T> view(T* data, Device device = {}) const {
    if (shape.size() < 2) return vector(data, DType::kFloat32, extent(), device);
    auto result = matrix(data, DType::kFloat32, shape[0], shape[1], -1, device);
    result.strides = {strides[0], strides[1]};
    return result;
  }
};

/// The layout that is read and written fastest on the device: row-major, except for 1x128 on a GPU.
/// There the scales of a block of columns lie next to each other, each column at a multiple of 16
/// bytes, with strides (1, round_up(rows, 4)). Operations take any other strides too.
/// Throws Error(kInvalidArgument) for sizes that are negative or that memory cannot hold.
OCTOFOLD_API ScaleLayout scale_layout(Granularity granularity, std::int64_t rows, std::int64_t cols,
                                      DeviceType device = DeviceType::kCpu);

/// Rows [begin, end) of a scaled matrix: a view of the same memory, codes and scales. `begin` has
/// to be where a scale begins: a multiple of 128 for 128x128, any row otherwise. `end` has to be
/// where a scale begins, or the number of rows. Throws Error(kInvalidArgument) that names the
/// bound.
OCTOFOLD_API ScaledTensorView row_slice(const ScaledTensorView& matrix, std::int64_t begin,
                                        std::int64_t end);

}  // namespace octofold
