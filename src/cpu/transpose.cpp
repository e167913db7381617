#include "cpu/transpose.h"

#include <algorithm>

#include "cpu/parallel.h"

namespace octofold::cpu {

// Squares of 64 by way of an array: rows a power of two apart share few lines of the cache, of
// which each is used whole at once. An item is 64 columns of one matrix.
void transpose(const TensorView& x, const MutableTensorView& out, std::int64_t matrices) {
  if (x.element_count() == 0) return;
  constexpr std::int64_t kSquare = 64;
  const std::int64_t rows = x.shape[0] / matrices, cols = x.shape[1];
  const std::int64_t strips = (cols + kSquare - 1) / kSquare;
  const auto* from = static_cast<const unsigned char*>(x.data);
  auto* to = static_cast<unsigned char*>(out.data);
  parallel_for(matrices * strips, rows * kSquare, [&] {
    return [&](std::int64_t item) {
      const std::int64_t matrix = item / strips, first_col = item % strips * kSquare;
      const std::int64_t width = std::min(kSquare, cols - first_col);
      unsigned char square[kSquare][kSquare];
      for (std::int64_t first_row = 0; first_row < rows; first_row += kSquare) {
        const std::int64_t height = std::min(kSquare, rows - first_row);
        for (std::int64_t row = 0; row < height; ++row) {
          const std::int64_t of_x = matrix * rows + first_row + row;
          std::copy_n(from + of_x * x.strides[0] + first_col, width, square[row]);
        }
        for (std::int64_t col = 0; col < width; ++col) {
          const std::int64_t of_out = matrix * cols + first_col + col;
          unsigned char* line = to + of_out * out.strides[0] + first_row;
          for (std::int64_t row = 0; row < height; ++row) line[row] = square[row][col];
        }
      }
    };
  });
}

}  // namespace octofold::cpu
