// Conversions between number formats, to nearest even, and the maximum of packed integers. Of two
// packed numbers the first is in the low half.
#pragma once

#include "kernels/ptx/architecture.h"

namespace octofold::ptx {

// Beyond the largest finite number, infinity included: to the largest finite. NaN: 0x7F.
__device__ inline unsigned e4m3_pair(float first, float second) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  return pair;
}

__device__ inline unsigned e5m2_pair(float first, float second) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  return pair;
}

// Converts the lower pair of codes, or the upper one, exactly. NaN: 0x7FFF.
__device__ inline unsigned float16_pair_of_e4m3(unsigned codes, bool upper = false) {
  unsigned out;
  if (upper) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high; }"
        : "=r"(out)
        : "r"(codes));
  } else {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(static_cast<unsigned short>(codes)));
  }
  return out;
}

__device__ inline unsigned float16_pair_of_e5m2(unsigned pair) {
  unsigned out;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(out) : "h"(static_cast<unsigned short>(pair)));
  return out;
}

// Overflow to infinity. NaN: 0x7FFF.
__device__ inline unsigned float16_pair(float first, float second) {
  unsigned pair;
  if constexpr (kHasAmpere) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("{ .reg .b16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2;"
        " mov.b32 %0, {low, high}; }"
        : "=r"(pair)
        : "f"(first), "f"(second));
  }
  return pair;
}

__device__ inline unsigned bfloat16_pair(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

__device__ inline float float_of_float16(unsigned bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits)));
  return value;
}

__device__ inline unsigned max_u16_pair(unsigned left, unsigned right) {
  if constexpr (kHasHopper) {
    unsigned larger;
    asm("max.u16x2 %0, %1, %2;" : "=r"(larger) : "r"(left), "r"(right));
    return larger;
  } else {
    return __vmaxu2(left, right);
  }
}

}  // namespace octofold::ptx
