// From the largest magnitude of a unit to its scale, as src/cpu/scale.cpp does it, to the bit.
// Every operation here is rounded on its own: fusing a product and a sum would change results.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/numeric/round_to.h"
#include "kernels/shared/cast_rule.h"
#include "kernels/shared/fp8_format.h"

namespace octofold::numeric {

inline constexpr float kLargestFloat = 0x1.FFFFFEp127f;

struct UnitCast {
  float scale;    // takes codes back to values
  float operand;  // what values are multiplied with (kDivide, kDivideInType: divided by)
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

// `amax` is the largest magnitude of the unit, of kIn elements; NaN if any of them is.
template <config::CastRule kRule, DType kIn, DType kFp8, bool kPowerOfTwo>
__device__ inline UnitCast unit_cast(float amax) {
  constexpr float kMax = kFp8 == DType::kE4M3 ? config::kE4M3Format.largest_finite
                                              : config::kE5M2Format.largest_finite;
  // One library raises amax in FP64. What it is raised to is known here, and so is the quotient;
  // without raising, FP64 and FP32 quotients of two FP32 numbers round to the same.
  const bool raised = kRule.amax_floor > 0 && static_cast<double>(amax) < kRule.amax_floor;
  if constexpr (kRule.arithmetic == config::CastArithmetic::kFactor) {
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
    if constexpr (kRule.scale_in_type) scale = round_to<kIn>(scale);
    if constexpr (kRule.epsilon_for_zero) scale = scale == 0 ? config::epsilon_of(kIn) : scale;
    scale = raise_to(scale, kRule.scale_floor);
    if constexpr (kPowerOfTwo) {
      scale = round_to_power_of_two<kRule.rounding>(raise_to(scale, kRule.power_of_two_floor));
    }
    if constexpr (kRule.arithmetic == config::CastArithmetic::kReciprocal)
      return {scale, __frcp_rn(scale)};
    return {scale, scale};
  }
}

}  // namespace octofold::numeric
