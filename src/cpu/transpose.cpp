#include "cpu/transpose.h"

#include <algorithm>

#include "cpu/parallel.h"

namespace octofold::cpu {

// Squares of 64, whose lines of cache are read and written whole while they are at hand. An item is
// 64 columns of one matrix.
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
      const std::int64_t end_col = std::min(first_col + kSquare, cols);
      for (std::int64_t first_row = 0; first_row < rows; first_row += kSquare) {
        const std::int64_t end_row = std::min(first_row + kSquare, rows);
        for (std::int64_t col = first_col; col < end_col; ++col) {
          for (std::int64_t row = first_row; row < end_row; ++row) {
            to[(matrix * cols + col) * out.strides[0] + row] =
                from[(matrix * rows + row) * x.strides[0] + col];
          }
        }
      }
    };
  });
}

}  // namespace octofold::cpu
