// How threads read and write their part of a matrix: as vectors where rows allow it, else element
// by element.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/numeric/elements.h"
#include "kernels/ptx/global_memory.h"

namespace octofold::cast {

using numeric::load;
using numeric::Storage;

template <typename T, bool kVectors, int kCount>
__device__ inline void store(T* data, int exist, const unsigned (&words)[kCount * sizeof(T) / 4]) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  if constexpr (kVectors) {
    if (exist > 0) ptx::store_global<kCount* static_cast<int>(sizeof(T))>(data, words);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < exist) data[i] = static_cast<T>(words[i / kPerWord] >> i % kPerWord * 8 * sizeof(T));
    }
  }
}

// Where in the scale tensor the scale of element (row, col) is.
template <Granularity kGranularity>
__device__ inline long long scale_offset(long long row_stride, long long col_stride, long long row,
                                         long long col) {
  using enum Granularity;
  if constexpr (kGranularity == kTensor) return 0;
  if constexpr (kGranularity == kChannel) return row * row_stride;
  if constexpr (kGranularity == kBlock128x128) row /= kScaleBlock;
  return row * row_stride + col / kScaleBlock * col_stride;
}

// min(value, limit) as an int.
__device__ inline int at_most(long long value, int limit) {
  return value < limit ? static_cast<int>(value) : limit;
}

}  // namespace octofold::cast
