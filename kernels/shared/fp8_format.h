// The two FP8 formats as constants, for host and device alike, and the outer level of their scales.
// Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022, arXiv:2209.05433, table 1.
#pragma once

namespace octofold::config {

struct Fp8Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  unsigned char largest_code;  // the code of the largest finite value
  bool has_infinity;           // then infinity is the code after largest_code
  float largest_finite;
};

inline constexpr Fp8Format kE4M3Format{4, 3, 7, 0x7E, false, 448.0f};
inline constexpr Fp8Format kE5M2Format{5, 2, 15, 0x7B, true, 57344.0f};

// Every NaN that a cast produces. Hopper's conversion instructions give this code in both formats.
inline constexpr unsigned char kFp8Nan = 0x7F;

// A channel's factor as it counts: 1 in place of what has no use as one. That which is, a positive
// normal number, has a finite reciprocal, by which values are multiplied before they are cast.
constexpr float channel_factor(float held) {
  return held >= 0x1p-126f && held <= 0x1.FFFFFEp127f ? held : 1.0f;
}

}  // namespace octofold::config
