// Elements of the output types, to and from FP32 registers.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/ptx/convert.h"

namespace octofold {

template <DType kType>
__device__ inline float load_element(const void* data, long long index) {
  if constexpr (kType == DType::kFloat32) {
    return static_cast<const float*>(data)[index];
  } else {
    const unsigned bits = static_cast<const unsigned short*>(data)[index];
    return kType == DType::kBFloat16 ? __uint_as_float(bits << 16) : ptx::float_of_float16(bits);
  }
}

// Two 16-bit elements, the first in the low half; rounded to nearest even.
template <DType kType>
__device__ inline unsigned pack_pair(float first, float second) {
  return kType == DType::kBFloat16 ? ptx::bfloat16_pair(first, second)
                                   : ptx::float16_pair(first, second);
}

template <DType kType>
__device__ inline void store_element(void* data, long long index, float value) {
  if constexpr (kType == DType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<unsigned short*>(data)[index] =
        static_cast<unsigned short>(pack_pair<kType>(value, 0.0f));
  }
}

// Stores up to two neighbours: as one word where its address allows.
template <DType kType>
__device__ inline void store_pair(void* data, long long index, float2 values, bool both) {
  if constexpr (kType == DType::kFloat32) {
    float* target = static_cast<float*>(data) + index;
    if (both && reinterpret_cast<unsigned long long>(target) % sizeof(float2) == 0) {
      *reinterpret_cast<float2*>(target) = values;
      return;
    }
    target[0] = values.x;
    if (both) target[1] = values.y;
  } else {
    unsigned short* target = static_cast<unsigned short*>(data) + index;
    const unsigned pair = pack_pair<kType>(values.x, values.y);
    if (both && reinterpret_cast<unsigned long long>(target) % sizeof(pair) == 0) {
      *reinterpret_cast<unsigned*>(target) = pair;
      return;
    }
    target[0] = static_cast<unsigned short>(pair);
    if (both) target[1] = static_cast<unsigned short>(pair >> 16);
  }
}

}  // namespace octofold
