// Views of memory that the caller owns. Octofold never allocates or frees a caller's tensor.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "octofold/types.h"

namespace octofold {

/// kNone is for tensors without memory, as compilers trace programs with them: an operation checks
/// its arguments, all but the numbers in them, and does nothing. Their `data` is never followed,
/// but has to say that they are apart.
enum class DeviceType : std::uint8_t { kCpu, kCuda, kNone };

struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int32_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr std::int32_t kMaxRank = 8;

/// A strided view. Shape and strides count elements, outermost dimension first; entries from
/// `rank` on are unused. `data` points at element (0, …, 0) and may be null when a dimension is 0.
template <typename Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::kFloat32;
  std::int32_t rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};
  Device device{};

  constexpr std::int64_t element_count() const {
    std::int64_t count = 1;
    for (std::int32_t i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }

  /// A view that may be written can be read.
  constexpr operator BasicTensorView<const void*>() const
    requires(!std::is_const_v<std::remove_pointer_t<Pointer>>)
  {
    return {data, dtype, rank, shape, strides, device};
  }
};

using TensorView = BasicTensorView<const void*>;
using MutableTensorView = BasicTensorView<void*>;

namespace detail {
template <typename T>
using ViewOf = std::conditional_t<std::is_const_v<T>, TensorView, MutableTensorView>;
}

/// A row-major matrix [rows, cols]; `row_stride` is in elements, and cols if left out.
template <typename T>
constexpr detail::ViewOf<T> matrix(T* data, DType dtype, std::int64_t rows, std::int64_t cols,
                                   std::int64_t row_stride = -1, Device device = {}) {
  return {data, dtype, 2, {rows, cols}, {row_stride < 0 ? cols : row_stride, 1}, device};
}

/// A contiguous vector [size].
template <typename T>
constexpr detail::ViewOf<T> vector(T* data, DType dtype, std::int64_t size, Device device = {}) {
  return {data, dtype, 1, {size}, {1}, device};
}

/// An FP8 tensor with the FP32 scales that take its codes back to values: x ≈ code × scale.
/// `data` is [..., K], e4m3 or e5m2; the shape of `scale` follows from the granularity
/// (cast_targets.h).
struct ScaledTensorView {
  TensorView data;
  TensorView scale;
  Granularity granularity = Granularity::kTensor;
};

}  // namespace octofold
