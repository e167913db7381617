#include "core/scale_layout.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "octofold/scale_layout.h"

#include "core/check.h"

namespace octofold::core {
namespace {

// Strides by which the scale of unit (row, col) is found; a shape of rank 1 (or all ones) has none
// along the other dimension.
template <typename T, typename View>
ScaleAccess<T> access(const View& scale, Granularity granularity) {
  T* data = static_cast<T*>(scale.data);
  if (varies_along_k(granularity)) return {data, scale.strides[0], scale.strides[1]};
  const bool of_one = granularity == Granularity::kTensor && scale.element_count() <= 1;
  return {data, of_one ? 0 : scale.strides[0], 0};
}

// So many rows later.
template <typename View>
void skip_rows(View& tensor, std::int64_t count) {
  if (tensor.data == nullptr) return;
  using Pointer = std::remove_reference_t<decltype(tensor.data)>;
  using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, char, const char>;
  tensor.data = static_cast<Byte*>(tensor.data) + count * tensor.strides[0] * size_of(tensor.dtype);
}

// Calls body(scale) for what has the shape of the scales: themselves, and largest magnitudes.
template <typename View, typename Body>
void for_each_of_units(View& matrix, Body&& body) {
  body(matrix.scale);
  if constexpr (requires { matrix.amax; }) {
    if (matrix.amax) body(*matrix.amax);
  }
}

template <typename View>
View one_of_stack(const View& stack, std::int64_t matrices, std::int64_t index) {
  const std::int64_t rows = stack.data.shape[0] / matrices;
  const ScaleGrid grid = scale_grid(granularity_of(stack), rows, stack.data.shape[1]);
  View matrix = stack;
  skip_rows(matrix.data, index * rows);
  matrix.data.shape[0] = rows;
  for_each_of_units(matrix, [&](auto& scale) {
    skip_rows(scale, index * grid.rows);
    scale.shape[0] = grid.rows;
  });
  return matrix;
}

}  // namespace

UnitSize unit_size(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  const GranularityRow unit = row_of(granularity);
  return {unit.rows == GranularityRow::kWhole ? rows : unit.rows,
          unit.cols == GranularityRow::kWhole ? cols : unit.cols};
}

ScaleGrid scale_grid(Granularity granularity, std::int64_t rows, std::int64_t cols,
                     std::int64_t matrices) {
  // A dimension that is whole has one unit even where it is empty.
  const auto units = [](std::int64_t size, int unit) {
    return unit == GranularityRow::kWhole ? 1 : ceil_divide(size, unit);
  };
  const GranularityRow unit = row_of(granularity);
  return {matrices * units(rows / matrices, unit.rows), units(cols, unit.cols)};
}

bool scale_shape_matches(const ScaledTensorView& tensor, std::int64_t matrices) {
  const TensorView& scale = tensor.scale;
  if (tensor.granularity == Granularity::kTensor) return scale.element_count() == matrices;
  const ScaleGrid grid =
      scale_grid(tensor.granularity, tensor.data.shape[0], tensor.data.shape[1], matrices);
  const bool is_vector = scale.rank == 1 && !varies_along_k(tensor.granularity);
  return scale.shape[0] == grid.rows &&
         (is_vector || (scale.rank == 2 && scale.shape[1] == grid.cols));
}

std::vector<std::int64_t> stacked_scale_shape(Granularity granularity, std::int64_t matrices,
                                              std::int64_t rows, std::int64_t cols) {
  std::vector<std::int64_t> shape = scale_shape(granularity, rows / matrices, cols);
  if (granularity == Granularity::kTensor) return {matrices};
  shape.insert(shape.begin(), matrices);
  return shape;
}

std::optional<std::int64_t> matrices_of(const ScaledTensorView& tensor) {
  const TensorView& scale = tensor.scale;
  const std::int64_t matrices = scale.shape[0];
  if (scales_rows(tensor.granularity) ||
      scale.rank != (varies_along_k(tensor.granularity) ? 3 : 1) || matrices < 1 ||
      tensor.data.shape[0] % matrices != 0) {
    return std::nullopt;
  }
  return matrices;
}

ScaledTensorView matrix_of_stack(const ScaledTensorView& stack, std::int64_t matrices,
                                 std::int64_t index) {
  return one_of_stack(stack, matrices, index);
}

CastTarget matrix_of_stack(const CastTarget& stack, std::int64_t matrices, std::int64_t index) {
  return one_of_stack(stack, matrices, index);
}

ScaleAccess<const float> scale_access(const ScaledTensorView& tensor) {
  return access<const float>(tensor.scale, tensor.granularity);
}

ScaleAccess<float> scale_access(const CastTarget& target) {
  return access<float>(target.scale, target.format.granularity);
}

ScaleAccess<const float> amax_access(const CastTarget& target) {
  return access<const float>(*target.amax, target.format.granularity);
}

}  // namespace octofold::core

namespace octofold {
namespace {

// Columns of scales on a GPU start at multiples of 16 bytes, which one load takes.
constexpr std::int64_t kAlignment = 16 / size_of(DType::kFloat32);

void require_sizes(std::string_view operation, Granularity granularity, std::int64_t rows,
                   std::int64_t cols) {
  core::Arguments(operation).require_enumerator("granularity", granularity);
  if (rows >= 0 && cols >= 0) return;
  core::fail(ErrorCode::kInvalidArgument, "{}: expected sizes of at least 0, got {}×{}", operation,
             rows, cols);
}

template <typename View>
View slice_rows(View matrix, std::int64_t begin, std::int64_t end) {
  const core::Arguments check("row_slice");
  check.require_scaled_input("matrix", matrix);
  const std::int64_t rows = matrix.data.shape[0];
  const std::int64_t unit = core::unit_size(core::granularity_of(matrix), 1, 1).rows;
  const auto starts_a_scale = [&](std::int64_t row) { return row % unit == 0; };
  if (begin < 0 || begin > rows || !(starts_a_scale(begin) || begin == rows)) {
    check.fail("begin", core::format("a multiple of {} up to {}", unit, rows),
               core::format("{}", begin));
  }
  if (end < begin || end > rows || !(starts_a_scale(end) || end == rows)) {
    check.fail("end", core::format("{}, or a multiple of {} from {} on", rows, unit, begin),
               core::format("{}", end));
  }
  core::skip_rows(matrix.data, begin);
  matrix.data.shape[0] = end - begin;
  if (core::granularity_of(matrix) == Granularity::kTensor) return matrix;
  core::for_each_of_units(matrix, [&](auto& scale) {
    core::skip_rows(scale, core::ceil_divide(begin, unit));
    scale.shape[0] = core::ceil_divide(end, unit) - core::ceil_divide(begin, unit);
  });
  return matrix;
}

}  // namespace

std::vector<std::int64_t> scale_shape(Granularity granularity, std::int64_t rows,
                                      std::int64_t cols) {
  require_sizes("scale_shape", granularity, rows, cols);
  const core::ScaleGrid grid = core::scale_grid(granularity, rows, cols);
  if (!varies_along_k(granularity)) return {grid.rows};
  return {grid.rows, grid.cols};
}

ScaleLayout scale_layout(Granularity granularity, std::int64_t rows, std::int64_t cols,
                         DeviceType device) {
  require_sizes("scale_layout", granularity, rows, cols);
  core::Arguments("scale_layout").require_enumerator("device", device);
  constexpr std::int64_t kLargest = std::int64_t{1} << 57;  // bytes with all padding fit too
  std::int64_t codes = 0;
  if (__builtin_mul_overflow(rows, cols, &codes) || std::max({codes, rows, cols}) > kLargest) {
    core::fail(ErrorCode::kInvalidArgument,
               "scale_layout: expected sizes that memory can hold, got {}×{}", rows, cols);
  }
  std::vector<std::int64_t> shape = scale_shape(granularity, rows, cols);
  if (shape.size() == 1) return {std::move(shape), {1}};
  const bool by_columns = scales_rows(granularity) && device == DeviceType::kCuda;
  if (by_columns) return {std::move(shape), {1, core::ceil_divide(rows, kAlignment) * kAlignment}};
  const std::int64_t cols_of_scales = shape[1];
  return {std::move(shape), {cols_of_scales, 1}};
}

std::int64_t ScaleLayout::extent() const {
  if (shape.empty()) {
    core::fail(ErrorCode::kInvalidArgument,
               "scales: expected a layout, got one that was moved from");
  }
  std::int64_t extent = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return 0;
    extent = std::max(extent, shape[i] * strides[i]);
  }
  return extent;
}

ScaledTensorView row_slice(const ScaledTensorView& matrix, std::int64_t begin, std::int64_t end) {
  return slice_rows(matrix, begin, end);
}

CastTarget row_slice(const CastTarget& target, std::int64_t begin, std::int64_t end) {
  return slice_rows(target, begin, end);
}

}  // namespace octofold
