// The addresses at which threads read and write a matrix (numeric/elements.h: how), and its scales.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/numeric/elements.h"

namespace octofold::cast {

using numeric::load;
using numeric::Storage;
using numeric::store;

// The offset in the scale tensor of the scale of element (row, col).
template <Granularity kGranularity>
__device__ inline long long scale_offset(long long row_stride, long long col_stride, long long row,
                                         long long col) {
  using enum Granularity;
  if constexpr (kGranularity == kTensor) return 0;
  if constexpr (kGranularity == kChannel) return row * row_stride;
  if constexpr (kGranularity == kBlock128x128) row /= kScaleBlock;
  return row * row_stride + col / kScaleBlock * col_stride;
}

// True if any rows are multiplied by a matrix of a stack (CastTargets::used).
__device__ inline bool is_used(const int* used, long long matrix) {
  return used[matrix] < used[matrix + 1];
}

// min(value, limit) as an int.
__device__ inline int at_most(long long value, int limit) {
  return value < limit ? static_cast<int>(value) : limit;
}

}  // namespace octofold::cast
