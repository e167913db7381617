// Elements of memory in registers: as vectors where rows allow it, else one by one.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/ptx/global_memory.h"

namespace octofold::numeric {

template <int kBytes>
struct StorageOf;
template <>
struct StorageOf<1> {
  using Type = unsigned char;
};
template <>
struct StorageOf<2> {
  using Type = unsigned short;
};
template <>
struct StorageOf<4> {
  using Type = unsigned;
};

// Unsigned integers as wide as elements of the type.
template <DType kType>
using Storage = typename StorageOf<size_of(kType)>::Type;

// kCount elements at `data`, of which the first `exist` exist (a whole vector, or none of it, does
// where kVectors); zeros in place of the others.
template <typename T, bool kVectors, int kCount>
__device__ inline void load(const T* data, int exist, unsigned (&words)[kCount * sizeof(T) / 4]) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kCount / kPerWord; ++i) words[i] = 0;
  if constexpr (kVectors) {
    if (exist > 0) ptx::load_global<kCount* static_cast<int>(sizeof(T))>(data, words);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < exist) words[i / kPerWord] |= unsigned{data[i]} << i % kPerWord * 8 * sizeof(T);
    }
  }
}

// The same the other way.
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

}  // namespace octofold::numeric
