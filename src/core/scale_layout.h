// The one place that knows how granularities divide a matrix, and where scales lie
// (octofold/scale_layout.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "octofold/cast_targets.h"
#include "octofold/tensor.h"

namespace octofold::core {

constexpr std::int64_t ceil_divide(std::int64_t value, std::int64_t divisor) {
  return value / divisor + (value % divisor != 0);
}

/// Sizes of the part of a matrix that shares one scale, clipped to the matrix.
struct UnitSize {
  std::int64_t rows;
  std::int64_t cols;
};
UnitSize unit_size(Granularity granularity, std::int64_t rows, std::int64_t cols);

inline Granularity granularity_of(const ScaledTensorView& tensor) { return tensor.granularity; }
inline Granularity granularity_of(const CastTarget& target) { return target.format.granularity; }

/// How many units there are along the rows and the columns. Tensor granularity has one unit even
/// for an empty matrix, as its scale is a scalar. Of a stack of `matrices`, which divides the rows:
/// along the rows of them all, whose units are one below another.
struct ScaleGrid {
  std::int64_t rows;
  std::int64_t cols;
};
ScaleGrid scale_grid(Granularity granularity, std::int64_t rows, std::int64_t cols,
                     std::int64_t matrices = 1);

/// From row to row of codes that Octofold allocates, in bytes. On a GPU each row begins with a
/// sector of the cache: products read rows at odd multiples of 16 bytes up to 1.3 times as slowly
/// (docs/notes/products.md, "Rows of codes").
constexpr std::int64_t code_row_stride(std::int64_t cols, DeviceType device) {
  constexpr std::int64_t kSector = 32;
  return device == DeviceType::kCuda ? ceil_divide(cols, kSector) * kSector : cols;
}

/// True if the scale tensor has one of the shapes that cast_targets.h allows; for a stack, one
/// whose leading dimensions are one.
bool scale_shape_matches(const ScaledTensorView& tensor, std::int64_t matrices = 1);

/// Shape of the scales of a stack, `rows` counting those of all matrices (CastTargets::matrices).
std::vector<std::int64_t> stacked_scale_shape(Granularity granularity, std::int64_t matrices,
                                              std::int64_t rows, std::int64_t cols);

/// The number of matrices of which the scales of flat codes are a stack (as above). None for lines,
/// whose scales in a stack are those of one matrix, and where the shape is none of a stack.
std::optional<std::int64_t> matrices_of(const ScaledTensorView& tensor);

/// One of a stack's matrices, all of which are the rows of one (flat codes, flat scales).
ScaledTensorView matrix_of_stack(const ScaledTensorView& stack, std::int64_t matrices,
                                 std::int64_t index);
CastTarget matrix_of_stack(const CastTarget& stack, std::int64_t matrices, std::int64_t index);

/// Access to the scale of unit (row, col), whichever of the allowed shapes and strides it has. Of
/// the tensors in a stack, the rows are the matrices.
template <typename T>
struct ScaleAccess {
  T* data;
  std::int64_t row_stride;
  std::int64_t col_stride;

  T& operator()(std::int64_t row, std::int64_t col) const {
    return data[row * row_stride + col * col_stride];
  }
};
ScaleAccess<const float> scale_access(const ScaledTensorView& tensor);
ScaleAccess<float> scale_access(const CastTarget& target);
ScaleAccess<const float> amax_access(const CastTarget& target);

}  // namespace octofold::core
