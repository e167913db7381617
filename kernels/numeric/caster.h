// From the values of a unit to those that FP8 rounds, with what is worked out once for the unit.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/numeric/format_bits.h"
#include "kernels/shared/cast_rule.h"

namespace octofold::numeric {

// Made from a unit's operand (unit_cast.h), for values that were read as kIn. A plain value, which
// may lie in shared memory. Where it is unusual, values take apply<true>, else apply<false> does.
template <config::CastArithmetic kArithmetic, DType kIn>
struct Caster {
  static constexpr bool kMayBeUnusual = false;
  float factor;

  static __device__ Caster make(float operand) { return {operand}; }

  __device__ bool is_unusual() const { return false; }

  template <bool kUnusual, int kCount>
  __device__ void apply(float (&values)[kCount]) const {
#pragma unroll
    for (float& value : values) value = __fmul_rn(value, factor);
  }
};

// x / scale, by multiplications, to the FP8 code of the correctly rounded quotient (one below 2^-17
// is a zero of the same sign).
//
// The quotient need not be correctly rounded for that: it must lie on the right side of every point
// at which rounding to FP8 decides, or on it. 16-bit x are multiplied with the reciprocal, kept as
// a sum of two numbers; the first is rounded toward zero, so that neither is negative and -0 stays
// -0. FP32 x fill their 24 bits and need a Newton step, from a remainder that FMA gives exactly.
// Both were tried for every x and every scale near such a quotient (tests/cpp/kernels), and hold as
// long as nothing overflows. Quotients do not, |x| being at most about 2^16 scales; scales far from
// 1 are unusual, and brought nearer first. So is 2^127, which stands for an infinite scale: only
// there may x be infinite.
template <DType kIn>
struct alignas(16) Caster<config::CastArithmetic::kDivide, kIn> {
  static constexpr bool kMayBeUnusual = true;
  static constexpr bool kWide = kIn == DType::kFloat32;

  float reciprocal;
  float companion;  // kWide: the divisor. Else: what the reciprocal lacks
  float shift;      // of x and the scale. 0: the product with the reciprocal is the quotient

  static __device__ Caster make(float scale) {
    // 0, 2^127, infinity and NaN.
    if (!(scale > 0 && scale < 0x1p127f)) return {__frcp_rn(scale), 0, 0};
    const float shift = scale < 0x1p-80f ? 0x1p96f : scale > 0x1p80f ? 0x1p-96f : 1.0f;
    const float divisor = __fmul_rn(scale, shift);
    if constexpr (kWide) return {__frcp_rn(divisor), divisor, shift};
    const float reciprocal = __frcp_rz(divisor);
    return {reciprocal, __fdiv_rn(__fmaf_rn(-reciprocal, divisor, 1), divisor), shift};
  }

  __device__ bool is_unusual() const { return shift != 1; }

  template <bool kUnusual, int kCount>
  __device__ void apply(float (&values)[kCount]) const {
#pragma unroll
    for (float& value : values) {
      if constexpr (!kUnusual) {
        value = quotient(value);
      } else {
        value = shift == 0 ? __fmul_rn(value, reciprocal) : quotient(__fmul_rn(value, shift));
      }
    }
  }

  __device__ float quotient(float x) const {
    if constexpr (kWide) {
      const float first = __fmul_rn(x, reciprocal);
      // The remainder is negated, which keeps a quotient of -0.
      const float remainder = __fmaf_rn(first, companion, -x);
      return __fmaf_rn(-remainder, reciprocal, first);
    } else {
      return __fmaf_rn(x, reciprocal, __fmul_rn(x, companion));
    }
  }
};

// The quotient itself is what is rounded here. A sum with 0 is 0 where it was -0.
template <DType kIn>
struct Caster<config::CastArithmetic::kDivideInType, kIn> {
  static constexpr bool kMayBeUnusual = false;
  float scale;

  static __device__ Caster make(float scale) { return {scale}; }

  __device__ bool is_unusual() const { return false; }

  template <bool kUnusual, int kCount>
  __device__ void apply(float (&values)[kCount]) const {
#pragma unroll
    for (float& value : values) {
      value = __fadd_rn(round_to<kIn>(__fdiv_rn(value, scale)), 0.0f);
    }
  }
};

}  // namespace octofold::numeric
