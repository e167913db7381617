// Rectangles of a matrix, in FP32 and in runs along its rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "octofold/tensor.h"

#include "cpu/convert.h"

namespace octofold::cpu {

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
