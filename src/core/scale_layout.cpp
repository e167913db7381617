#include "core/scale_layout.h"

#include <algorithm>

namespace octofold::core {
namespace {

bool is_block(Granularity granularity) {
  return granularity == Granularity::kBlock1x128 || granularity == Granularity::kBlock128x128;
}

// Strides by which the scale of unit (row, col) is found; a shape of rank 1 (or all ones) has none
// along the other dimension.
template <typename T, typename View>
ScaleAccess<T> access(const View& tensor) {
  T* data = static_cast<T*>(tensor.scale.data);
  if (tensor.granularity == Granularity::kTensor) return {data, 0, 0};
  if (tensor.granularity == Granularity::kChannel) return {data, tensor.scale.strides[0], 0};
  return {data, tensor.scale.strides[0], tensor.scale.strides[1]};
}

}  // namespace

UnitSize unit_size(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  switch (granularity) {
    case Granularity::kTensor: return {rows, cols};
    case Granularity::kChannel: return {1, cols};
    case Granularity::kBlock1x128: return {1, kScaleBlock};
    case Granularity::kBlock128x128: return {kScaleBlock, kScaleBlock};
  }
  return {rows, cols};
}

ScaleGrid scale_grid(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  switch (granularity) {
    case Granularity::kTensor: return {1, 1};
    case Granularity::kChannel: return {rows, 1};
    case Granularity::kBlock1x128: return {rows, ceil_divide(cols, kScaleBlock)};
    case Granularity::kBlock128x128:
      return {ceil_divide(rows, kScaleBlock), ceil_divide(cols, kScaleBlock)};
  }
  return {1, 1};
}

std::vector<std::int64_t> scale_shape(Granularity granularity, std::int64_t rows,
                                      std::int64_t cols) {
  const ScaleGrid grid = scale_grid(granularity, rows, cols);
  if (is_block(granularity)) return {grid.rows, grid.cols};
  return {grid.rows};
}

bool scale_shape_matches(const ScaledTensorView& tensor) {
  const TensorView& scale = tensor.scale;
  const ScaleGrid grid = scale_grid(tensor.granularity, tensor.data.shape[0], tensor.data.shape[1]);
  switch (tensor.granularity) {
    case Granularity::kTensor: return scale.element_count() == 1;
    case Granularity::kChannel:
      return scale.shape[0] == grid.rows &&
             (scale.rank == 1 || (scale.rank == 2 && scale.shape[1] == 1));
    case Granularity::kBlock1x128:
    case Granularity::kBlock128x128:
      return scale.rank == 2 && scale.shape[0] == grid.rows && scale.shape[1] == grid.cols;
  }
  return false;
}

ScaleAccess<const float> scale_access(const ScaledTensorView& tensor) {
  return access<const float>(tensor);
}

ScaleAccess<float> scale_access(const MutableScaledTensorView& tensor) {
  return access<float>(tensor);
}

}  // namespace octofold::core
