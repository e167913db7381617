// Words that hold several numbers, by the CPU backend's formats.
#pragma once

#include "kernels/ptx/convert.h"

namespace octofold::ptx {

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

}  // namespace octofold::ptx
