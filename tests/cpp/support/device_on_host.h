// Functions that CUDA's compiler knows and the host's does not: with them, device code that has no
// PTX compiles for the host too. Sums of products must not be contracted (-ffp-contract=off).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#define __device__

inline float __fadd_rn(float left, float right) { return left + right; }
inline float __fmul_rn(float left, float right) { return left * right; }
inline float __fsqrt_rn(float value) { return std::sqrt(value); }
inline float __fdiv_rn(float left, float right) { return left / right; }
inline float __fdividef(float left, float right) { return left / right; }
inline float __frcp_rn(float value) { return 1.0f / value; }
inline float __fmaf_rn(float left, float right, float addend) {
  return std::fma(left, right, addend);
}
inline float __frcp_rz(float value) {
  const float nearest = 1.0f / value;
  return std::fma(nearest, value, -1.0f) > 0 ? std::nextafter(nearest, 0.0f) : nearest;
}
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = selector >> 4 * i & 7;
    result |= ((from < 4 ? low : high) >> from % 4 * 8 & 0xFF) << 8 * i;
  }
  return result;
}
// Returns the lower word of the two, the second above the first, after a shift by up to 31.
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (shift & 31));
}
