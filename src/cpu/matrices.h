// Matrices in memory: their elements to and from FP32, their rows, parts and runs, and matrices
// with memory of their own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <vector>

#include "octofold/cast_sources.h"
#include "octofold/tensor.h"

namespace octofold::cpu {

/// out[i] = element `offset + i · stride` of an array of `dtype` at `data`, for i in [0, count).
void load(const void* data, DType dtype, std::int64_t offset, std::int64_t stride,
          std::int64_t count, float* out);

/// Writes values[0, count) from element `offset` on.
void store(const float* values, std::int64_t count, void* data, DType dtype, std::int64_t offset,
           Overflow overflow);

/// A row-major matrix with memory of its own.
struct OwnedMatrix {
  std::vector<std::byte> memory;  ///< empty where the view is of another's
  TensorView view;

  static OwnedMatrix make(std::int64_t rows, std::int64_t cols, DType dtype) {
    OwnedMatrix result;
    result.memory.resize(static_cast<std::size_t>(rows * cols * size_of(dtype)));
    result.view = matrix(static_cast<const void*>(result.memory.data()), dtype, rows, cols);
    return result;
  }
  MutableTensorView writable() {
    return matrix(static_cast<void*>(memory.data()), view.dtype, view.shape[0], view.shape[1]);
  }
};

/// Gathered rows, and zeros for those that come from nowhere. No place is less than -1 or beyond
/// those of x.
OwnedMatrix gathered(const GatheredRows& rows);

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

using Row = std::vector<float>;

/// Row `row` of a matrix, or a vector, as far as there is room for it in `values`.
inline void read_row(const TensorView& tensor, std::int64_t row, Row& values) {
  const std::int64_t offset = tensor.rank == 2 ? row * tensor.strides[0] : 0;
  load(tensor.data, tensor.dtype, offset, 1, std::ssize(values), values.data());
}

inline void write_row(const Row& values, const MutableTensorView& matrix, std::int64_t row) {
  store(values.data(), std::ssize(values), matrix.data, matrix.dtype, row * matrix.strides[0],
        Overflow::kSaturate);
}

/// Through a buffer that stays in the L1 cache.
inline constexpr std::int64_t kRun = 512;

struct Rectangle {
  std::int64_t row, rows, col, cols;
};

/// Calls body(row, col, values, count) for the runs that make up a rectangle of x.
template <typename Body>
void for_each_run(const TensorView& x, const Rectangle& area, Body&& body) {
  std::array<float, kRun> run;
  for (std::int64_t row = area.row; row < area.row + area.rows; ++row) {
    for (std::int64_t col = area.col; col < area.col + area.cols; col += kRun) {
      const std::int64_t count = std::min(kRun, area.col + area.cols - col);
      load(x.data, x.dtype, row * x.strides[0] + col * x.strides[1], x.strides[1], count,
           run.data());
      body(row, col, run.data(), count);
    }
  }
}

}  // namespace octofold::cpu
