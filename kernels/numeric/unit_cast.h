// From the largest magnitude of a unit to its scale, as src/cpu/scale.cpp does it, to the bit.
// Every operation here is rounded on its own: fusing a product and a sum would change results.
#pragma once

#include "kernels/config/cast_rule.h"
#include "kernels/config/element.h"
#include "kernels/config/fp8_format.h"

namespace octofold::numeric {

inline constexpr float kLargestFloat = 0x1.FFFFFEp127f;

struct UnitCast {
  float scale;    // takes codes back to values
  float operand;  // what values are multiplied with (kDivide: divided by)
};

// max() that hands NaN on.
__device__ inline float raise_to(float value, float floor) { return value < floor ? floor : value; }

// exp2(ceil or floor of log2(value)) for 0, infinity, NaN (themselves) and normal numbers; there
// are no others, given the floors of the rules that ask for it. The logarithm is rounded to FP32.
template <bool kUp>
__device__ inline float exp2_of_rounded_log2(float value) {
  const unsigned exponent = __float_as_uint(value) >> 23;
  if (exponent == 0 || exponent == 255) return value;
  const float logarithm = static_cast<float>(log2(static_cast<double>(value)));
  const int power = static_cast<int>(kUp ? ceilf(logarithm) : floorf(logarithm));
  return __uint_as_float(static_cast<unsigned>(power + 127) << 23);
}

template <config::PowerOfTwoRounding kRounding>
__device__ inline float round_to_power_of_two(float value) {
  using enum config::PowerOfTwoRounding;
  const unsigned bits = __float_as_uint(value);
  if constexpr (kRounding == kCeil) {
    const unsigned exponent = ((bits >> 23) & 0xFFu) + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
    return __uint_as_float((exponent < 1 ? 1 : exponent > 254 ? 254 : exponent) << 23);
  } else if constexpr (kRounding == kTruncate) {
    return __uint_as_float(bits & 0xFF800000u);
  } else {
    return exp2_of_rounded_log2<kRounding == kCeilLog2>(value);
  }
}

// `amax` is the largest magnitude of the unit, NaN if any element is.
template <config::CastRule kRule, config::Element kFp8, bool kPowerOfTwo>
__device__ inline UnitCast unit_cast(float amax) {
  constexpr float kMax = kFp8 == config::Element::kE4M3 ? config::kE4M3Format.largest_finite
                                                        : config::kE5M2Format.largest_finite;
  // One library raises amax in FP64. What it is raised to is known here, and so is the quotient;
  // without raising, FP64 and FP32 quotients of two FP32 numbers round to the same.
  const bool raised = kRule.amax_floor > 0 && static_cast<double>(amax) < kRule.amax_floor;
  if constexpr (kRule.form == config::CastForm::kFactor) {
    constexpr double kFloor = kRule.amax_floor > 0 ? kRule.amax_floor : 1;
    float factor = raised ? static_cast<float>(kMax / kFloor) : __fdiv_rn(kMax, amax);
    if constexpr (kRule.repair_factor) {
      if (!(amax > 0 && amax <= kLargestFloat)) factor = 1;
      if (factor > kLargestFloat) factor = kLargestFloat;
    }
    if constexpr (kPowerOfTwo) factor = round_to_power_of_two<kRule.rounding>(factor);
    return {__frcp_rn(factor), factor};
  } else {
    float scale = raised ? static_cast<float>(kRule.amax_floor / kMax) : __fdiv_rn(amax, kMax);
    scale = raise_to(scale, kRule.scale_floor);
    if constexpr (kPowerOfTwo) {
      scale = round_to_power_of_two<kRule.rounding>(raise_to(scale, kRule.power_of_two_floor));
    }
    if constexpr (kRule.form == config::CastForm::kDivide) return {scale, scale};
    return {scale, __frcp_rn(scale)};
  }
}

// Applies the cast of a unit to its values, given the unit's operand. A plain value, which may lie
// in shared memory.
template <config::CastForm kForm>
struct Caster {
  float factor;

  static __device__ Caster make(float operand) { return {operand}; }

  template <int kCount>
  __device__ void apply(float (&values)[kCount]) const {
#pragma unroll
    for (float& value : values) value = __fmul_rn(value, factor);
  }
};

// x / scale, with one reciprocal for many x, to the FP8 code of the correctly rounded quotient (one
// below 2^-17 is a zero of the same sign). A Newton step on the quotient, from a remainder that FMA
// gives exactly, may miss the correctly rounded one by a bit, but never across a point at which FP8
// rounding decides: tried for every x and every scale near such a quotient (tests/cpp/kernels), as
// long as nothing overflows. Quotients do not, |x| being at most about 2^16 scales, and scales far
// from 1 are brought nearer first. Only with 2^127, which stands for an infinite scale, may x be
// infinite.
template <>
struct alignas(16) Caster<config::CastForm::kDivide> {
  float shift;  // of x and the scale: nearly always 1. 0: a scale that no quotient can be formed of
  float divisor;
  float reciprocal;

  static __device__ Caster make(float scale) {
    // 0, 2^127, infinity and NaN: the product is what the quotient is.
    if (!(scale > 0 && scale < 0x1p127f)) return {0, scale, __frcp_rn(scale)};
    const float shift = scale < 0x1p-80f ? 0x1p96f : scale > 0x1p80f ? 0x1p-96f : 1.0f;
    const float divisor = __fmul_rn(scale, shift);
    return {shift, divisor, __frcp_rn(divisor)};
  }

  template <int kCount>
  __device__ void apply(float (&values)[kCount]) const {
    if (shift == 1) [[likely]] {
#pragma unroll
      for (float& value : values) value = quotient(value);
    } else {
#pragma unroll
      for (float& value : values) {
        value = shift == 0 ? __fmul_rn(value, reciprocal) : quotient(__fmul_rn(value, shift));
      }
    }
  }

  __device__ float quotient(float dividend) const {
    const float first = __fmul_rn(dividend, reciprocal);
    // The remainder is negated, which keeps a quotient of -0.
    const float remainder = __fmaf_rn(first, divisor, -dividend);
    return __fmaf_rn(-remainder, reciprocal, first);
  }
};

}  // namespace octofold::numeric
