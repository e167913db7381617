// Arithmetic of one instruction: exact here, but for the rounding; words that hold several numbers,
// by the CPU backend's formats; exchanges of words on a condition.
#pragma once

#include <cmath>
#include <utility>

#include "kernels/ptx/convert.h"
#include "kernels/ptx/shared_memory.h"  // exchanges between lanes, where swap_if is used

namespace octofold::ptx {

inline float exp2(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }

inline unsigned select_bits(unsigned mask, unsigned ones, unsigned zeros) {
  return (ones & mask) | (zeros & ~mask);
}

inline unsigned multiply_float16_pair(unsigned left, unsigned right) {
  return float16_pair(float_of_float16(left & 0xFFFF) * float_of_float16(right & 0xFFFF),
                      float_of_float16(left >> 16) * float_of_float16(right >> 16));
}

inline unsigned multiply_bfloat16_pair(unsigned left, unsigned right) {
  const auto value = [](unsigned bits) { return __uint_as_float(bits << 16); };
  return bfloat16_pair(value(left) * value(right), value(left >> 16) * value(right >> 16));
}

inline void swap_if(unsigned condition, unsigned& left, unsigned& right) {
  if (condition != 0) std::swap(left, right);
}

}  // namespace octofold::ptx
