// FP8 from and to other formats by integers and FP32, for GPUs without the instructions that
// convert, and FP32 rounded to 16 bits and kept in FP32. Plain arithmetic, so that it compiles for
// the host too. The CPU backend's number_formats.h does the same.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/cast_rule.h"

namespace octofold::numeric {

constexpr config::Fp8Format fp8_format(DType type) {
  return type == DType::kE4M3 ? config::kE4M3Format : config::kE5M2Format;
}

// The code of the nearest value, ties to the even code; of what lies beyond the largest finite
// value, infinity included, that one's. NaN: 0x7F.
template <DType kFp8>
__device__ inline unsigned fp8_of_float(float value) {
  constexpr config::Fp8Format kFormat = fp8_format(kFp8);
  constexpr int kDropped = 23 - kFormat.mantissa_bits;
  constexpr unsigned kSmallestNormal = static_cast<unsigned>(128 - kFormat.bias) << 23;
  // The last bit of this number is worth a step of the subnormal values.
  constexpr unsigned kMagic = kSmallestNormal + (static_cast<unsigned>(kDropped) << 23);
  const unsigned bits = __float_as_uint(value), magnitude = bits & 0x7FFFFFFFu;
  const unsigned subnormal =
      __float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(kMagic))) - kMagic;
  const unsigned rounded = magnitude + ((1u << (kDropped - 1)) - 1) + (magnitude >> kDropped & 1);
  const unsigned normal =
      (rounded >> kDropped) - (static_cast<unsigned>(127 - kFormat.bias) << kFormat.mantissa_bits);
  unsigned code = magnitude < kSmallestNormal ? subnormal : normal;
  code = code < kFormat.largest_code ? code : kFormat.largest_code;
  return magnitude > 0x7F800000u ? config::kFp8Nan : code | (bits >> 24 & 0x80u);
}

// The value of the code in the low byte, exact, with the NaN of the CPU backend. (decode_pairs.h
// takes fewer operations, and keeps what NaN codes hold.)
template <DType kFp8>
__device__ inline float float_of_fp8(unsigned code) {
  constexpr config::Fp8Format kFormat = fp8_format(kFp8);
  constexpr unsigned kBias = static_cast<unsigned>(254 - kFormat.bias) << 23;  // 2^(127 - bias)
  const unsigned sign = code << 24 & 0x80000000u, magnitude = code & 0x7Fu;
  // The bits as FP32 have an exponent that is too small; subnormal values are subnormal there.
  const float value =
      __fmul_rn(__uint_as_float(magnitude << (23 - kFormat.mantissa_bits)), __uint_as_float(kBias));
  unsigned bits = __float_as_uint(value);
  if (magnitude > kFormat.largest_code) {
    const bool is_infinity = kFormat.has_infinity && magnitude == kFormat.largest_code + 1u;
    bits = is_infinity ? 0x7F800000u : 0x7FFFFFFFu;
  }
  return __uint_as_float(bits | sign);
}

// The value rounded to a narrower type, to nearest even, overflow to infinity, NaN handed on: for
// casts that follow what is worked out in the type of x.
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
