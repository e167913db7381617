// Elements of the output types, to and from FP32 registers.
#pragma once

#include "kernels/config/element.h"

namespace octofold {

using config::Element;

template <Element kElement>
__device__ inline float load_element(const void* data, long long index) {
  if constexpr (kElement == Element::kFloat32) {
    return static_cast<const float*>(data)[index];
  } else {
    const unsigned short bits = static_cast<const unsigned short*>(data)[index];
    float value;
    if constexpr (kElement == Element::kBFloat16) {
      value = __uint_as_float(static_cast<unsigned>(bits) << 16);
    } else {
      asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    }
    return value;
  }
}

// Two 16-bit elements, the first in the low half; rounded to nearest even.
template <Element kElement>
__device__ inline unsigned pack_pair(float first, float second) {
  unsigned pair;
  if constexpr (kElement == Element::kBFloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

// Stores up to two neighbours: as one word where its address allows.
template <Element kElement>
__device__ inline void store_pair(void* data, long long index, float2 values, bool both) {
  if constexpr (kElement == Element::kFloat32) {
    float* target = static_cast<float*>(data) + index;
    if (both && reinterpret_cast<unsigned long long>(target) % sizeof(float2) == 0) {
      *reinterpret_cast<float2*>(target) = values;
      return;
    }
    target[0] = values.x;
    if (both) target[1] = values.y;
  } else {
    unsigned short* target = static_cast<unsigned short*>(data) + index;
    const unsigned pair = pack_pair<kElement>(values.x, values.y);
    if (both && reinterpret_cast<unsigned long long>(target) % sizeof(pair) == 0) {
      *reinterpret_cast<unsigned*>(target) = pair;
      return;
    }
    target[0] = static_cast<unsigned short>(pair);
    if (both) target[1] = static_cast<unsigned short>(pair >> 16);
  }
}

}  // namespace octofold
