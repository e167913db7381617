// Casts with scales, or largest magnitudes, that were given: they say nothing about the values of
// their unit.
#pragma once

#include "kernels/numeric/caster.h"

namespace octofold::numeric {

// A caster that does what Caster does, made from the scale and not from a unit's operand.
template <config::CastArithmetic kArithmetic, DType kIn>
struct GivenCaster : Caster<kArithmetic, kIn> {
  static __device__ GivenCaster make(float scale) {
    return {
        Caster<kArithmetic, kIn>::make(config::divides(kArithmetic) ? scale : __frcp_rn(scale))};
  }
};

// x / scale as Caster has it, where |x| may be any multiple of the scale, infinity too, and the
// scale negative or of any size. Of what is beyond FP8, the sign is all that matters, which the
// product with the reciprocal has; what Caster adds to it may be NaN there.
template <DType kIn>
struct GivenCaster<config::CastArithmetic::kDivide, kIn>
    : Caster<config::CastArithmetic::kDivide, kIn> {
  using Base = Caster<config::CastArithmetic::kDivide, kIn>;

  static __device__ GivenCaster make(float scale) {
    constexpr float kTiny = 0x1p-80f, kLarge = 0x1p80f, kLargest = 0x1.FFFFFEp127f;
    const float size = fabsf(scale);
    if (!(size > 0 && size <= kLargest)) return {{__frcp_rn(scale), 0, 0}};
    const float shift = size < kTiny ? 0x1p96f : size > kLarge ? 0x1p-96f : 1.0f;
    const float divisor = __fmul_rn(size, shift);
    const float signed_shift = scale < 0 ? -shift : shift;  // of x: the divisor is positive
    if constexpr (Base::kWide) return {{__frcp_rn(divisor), divisor, signed_shift}};
    const float reciprocal = __frcp_rz(divisor);
    return {{reciprocal, __fdiv_rn(__fmaf_rn(-reciprocal, divisor, 1), divisor), signed_shift}};
  }

  template <bool kUnusual, int kCount>
  __device__ void apply(float (&values)[kCount]) const {
#pragma unroll
    for (float& value : values) {
      if constexpr (kUnusual) {
        if (this->shift != 0) value = __fmul_rn(value, this->shift);
      }
      const float product = __fmul_rn(value, this->reciprocal);
      // Not for a NaN either, nor where there is nothing to be added (shift 0).
      const bool refine = fabsf(product) < 0x1p17f && (!kUnusual || this->shift != 0);
      value = refine ? this->quotient(value) : product;
    }
  }
};

// The caster, made from the operand, of values that may be any multiple of their unit's amax.
template <config::CastArithmetic kArithmetic, DType kIn>
struct FarCaster {
  using Type = Caster<kArithmetic, kIn>;
};
template <DType kIn>
struct FarCaster<config::CastArithmetic::kDivide, kIn> {
  using Type = GivenCaster<config::CastArithmetic::kDivide, kIn>;  // whose operand is the scale
};

}  // namespace octofold::numeric
