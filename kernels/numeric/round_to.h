// FP32 values rounded to a narrower type and kept in FP32, for casts that follow what is worked out
// in the type of x. Plain arithmetic, so that it compiles for the host too.
#pragma once

#include "octofold/vocabulary.h"

namespace octofold::numeric {

// To nearest even, overflow to infinity, NaN handed on.
template <DType kDType>
__device__ inline float round_to(float value) {
  const unsigned bits = __float_as_uint(value);
  if constexpr (kDType == DType::kBFloat16) {
    if (value != value) return value;
    return __uint_as_float((bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u);
  } else if constexpr (kDType == DType::kFloat16) {
    const unsigned sign = bits & 0x80000000u, magnitude = bits ^ sign;
    constexpr unsigned kInfinity = 0x7F800000u;
    constexpr unsigned kOverflow = 0x477FF000u;  // 65520, half a step beyond the largest
    if (magnitude > kInfinity) return value;
    if (magnitude >= kOverflow) return __uint_as_float(kInfinity | sign);
    // A sum with a number 2^13 times larger (of a subnormal: than the smallest normal number) has
    // its last bit where the rounded value has it.
    constexpr unsigned kSmallestNormal = 113u << 23;
    const unsigned exponent = magnitude & 0x7F800000u;
    const float large =
        __uint_as_float((exponent < kSmallestNormal ? kSmallestNormal : exponent) + (13u << 23));
    const float rounded = __fadd_rn(__fadd_rn(__uint_as_float(magnitude), large), -large);
    return __uint_as_float(__float_as_uint(rounded) | sign);
  } else {
    static_assert(kDType == DType::kFloat32);
    return value;
  }
}

}  // namespace octofold::numeric
