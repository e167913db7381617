// From the largest magnitude of a unit to its scale, as src/cpu/scale.cpp does it, to the bit.
// Every operation here is rounded on its own: fusing a product and a sum would change results.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/numeric/format_bits.h"
#include "kernels/shared/cast_rule.h"

namespace octofold::numeric {

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
  } else if constexpr (kRounding == kCeilFinite) {
    const bool finite = (bits & 0x7F800000u) != 0x7F800000u;
    return finite ? round_to_power_of_two<kCeil>(value) : value;
  } else if constexpr (kRounding == kTruncate) {
    return __uint_as_float(bits & 0xFF800000u);
  } else {
    return exp2_of_rounded_log2<kRounding == kCeilLog2>(value);
  }
}

template <DType kFp8>
inline constexpr float kMaxOf =
    kFp8 == DType::kE4M3 ? config::kE4M3Format.largest_finite : config::kE5M2Format.largest_finite;

// amax / max, where it is not larger for the sake of a power of two.
template <config::CastRule kRule, DType kIn, DType kFp8>
__device__ inline float scale_of(float amax) {
  constexpr float kMax = kMaxOf<kFp8>, kInverse = static_cast<float>(1.0 / kMax);
  float scale = kRule.scale_by_product ? __fmul_rn(amax, kInverse) : __fdiv_rn(amax, kMax);
  if constexpr (kRule.scale_in_type) scale = round_to<kIn>(scale);
  if constexpr (kRule.epsilon_for_zero) scale = scale == 0 ? config::epsilon_of(kIn) : scale;
  return raise_to(scale, kRule.scale_floor);
}

// max / amax. A floor that FP32 has not is one of FP64, where the quotient is known beforehand;
// without raising, FP64 and FP32 quotients of two FP32 numbers round to the same.
template <config::CastRule kRule, DType kIn, DType kFp8>
__device__ inline float factor_of(float amax) {
  using enum config::FactorRepair;
  constexpr float kMax = kMaxOf<kFp8>, kLargest = config::largest_of(DType::kFloat32);
  float factor = kRule.factor_by_product ? __fmul_rn(kMax, __frcp_rn(amax)) : __fdiv_rn(kMax, amax);
  if constexpr (kRule.raises_in_fp64()) {
    constexpr float kRaised = static_cast<float>(kMax / kRule.amax_floor);
    if (static_cast<double>(amax) < kRule.amax_floor) factor = kRaised;
  }
  if (kRule.repair != kNone && !(amax > 0)) factor = 1;
  if constexpr (kRule.repair == kAll || kRule.repair == kAllInType) {
    if (amax > kLargest) factor = 1;
    if (factor > kLargest) factor = kRule.repair == kAll ? kLargest : config::largest_of(kIn);
  }
  return factor;
}

// `amax` is the largest magnitude of the unit, of kIn elements; NaN if any of them is.
template <config::CastRule kRule, DType kIn, DType kFp8, bool kPowerOfTwo>
__device__ inline UnitCast unit_cast(float amax) {
  constexpr bool kRoundsScale = kPowerOfTwo && config::rounds_scale(kRule.rounding);
  constexpr bool kFromFactor = kRule.arithmetic == config::CastArithmetic::kFactor;
  if constexpr (kRule.amax_floor > 0 && !kRule.raises_in_fp64()) {
    amax = raise_to(amax, static_cast<float>(kRule.amax_floor));
  }
  float factor = factor_of<kRule, kIn, kFp8>(amax);
  if constexpr (kPowerOfTwo && !kRoundsScale)
    factor = round_to_power_of_two<kRule.rounding>(factor);
  float scale = kFromFactor ? __frcp_rn(factor) : scale_of<kRule, kIn, kFp8>(amax);
  if constexpr (kRoundsScale) {
    scale = round_to_power_of_two<kRule.rounding>(raise_to(scale, kRule.power_of_two_floor));
  }
  if constexpr (config::divides(kRule.arithmetic)) return {scale, scale};
  constexpr bool kInverts = kRoundsScale || kRule.arithmetic == config::CastArithmetic::kReciprocal;
  return {scale, kInverts ? __frcp_rn(scale) : factor};
}

}  // namespace octofold::numeric
