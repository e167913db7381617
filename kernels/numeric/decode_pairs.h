// FP8 codes of packed words to FP16, two at a time. All 256 codes of both formats are exact, NaN,
// infinity and subnormal numbers included.
//
// FP16 has the exponent of e5m2, so such a code is the upper byte of its value. An e4m3 code, moved
// right by one behind its sign, is its value over 2^8, and so are subnormal ones; only NaN has to
// have the exponent's first bit besides.
//
// Instructions for a pair of codes, where both pairs of a word are decoded:
//
// |                                   | e5m2 | e4m3 | from 8.9 on |
// |-----------------------------------|------|------|-------------|
// | float16_pair_in_units: over 2^8   | 1    | 4    | 1           |
// | float16_pair_of_fp8: the values   | 1    | 5    | 1           |
//
// | pair_in_units of bfloat16          | 4    | 7    | 4           |
//
// From 8.9 on e4m3 has a conversion, of either half of a word. bfloat16 has neither
// the exponent of e5m2 nor, before Hopper, a product: its pairs are the upper halves of FP32.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/numeric/vector.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/arithmetic.h"
#include "kernels/ptx/convert.h"

namespace octofold::numeric {

// The unit that float16_pair_in_units() counts in: values are its results times this, a power of
// two, by which sums of products can be multiplied as well as each of the values.
template <DType kFp8>
inline constexpr float kPairUnit = kFp8 == DType::kE4M3 && !ptx::kHasFp8Conversions ? 256.0f : 1.0f;

// Codes 2 · pair and 2 · pair + 1 of the word as FP16 over kPairUnit, the first in the low half.
// `pair` is 0 or 1, and a constant once loops are unrolled.
template <DType kFp8>
__device__ inline unsigned float16_pair_in_units(unsigned word, int pair) {
  static_assert(is_fp8(kFp8));
  if constexpr (kFp8 == DType::kE5M2) {
    return __byte_perm(word, 0, pair == 0 ? 0x1404 : 0x3424);
  } else if constexpr (ptx::kHasFp8Conversions) {
    return ptx::float16_pair_of_e4m3(word, pair == 1);
  } else {
    // All but the selection of bytes is for both pairs. Of each byte: in the place of its sign,
    // whether it is NaN, seven ones, from which a carry goes there;
    constexpr unsigned kMagnitudes = 0x7F7F7F7Fu;
    const unsigned carries = (word & kMagnitudes) + 0x01010101u;
    const unsigned marked = ptx::select_bits(kMagnitudes, word, carries);
    // its lower 7 bits where FP16's upper byte has them, of which the last one falls to the byte
    // below, of byte 0 to byte 3;
    const unsigned rotated = __funnelshift_r(marked, marked, 1);
    const unsigned upper = ptx::select_bits(kMagnitudes, rotated, word);
    const unsigned lower = rotated & ~kMagnitudes;
    return __byte_perm(lower, upper, pair == 0 ? 0x5043 : 0x7261);
  }
}

// The same as the values themselves.
template <DType kFp8>
__device__ inline unsigned float16_pair_of_fp8(unsigned word, int pair) {
  const unsigned halves = float16_pair_in_units<kFp8>(word, pair);
  if constexpr (kPairUnit<kFp8> == 1) return halves;
  constexpr unsigned kUnits = 0x5C005C00u;  // 256, twice
  return ptx::multiply_float16_pair(halves, kUnits);
}

// Pairs of either 16-bit type over kPairUnit, exact too.
template <DType kFp8, DType kType>
__device__ inline unsigned pair_in_units(unsigned word, int pair) {
  static_assert(kType == DType::kFloat16 || kType == DType::kBFloat16);
  const unsigned halves = float16_pair_in_units<kFp8>(word, pair);
  if constexpr (kType == DType::kFloat16) return halves;
  return __byte_perm(__float_as_uint(ptx::float_of_float16(halves)),
                     __float_as_uint(ptx::float_of_float16(halves >> 16)), 0x7632);
}

// Pairs of either 16-bit type, each value times a factor of its own: one rounding.
template <DType kFp8, DType kType>
__device__ inline unsigned scaled_pair(unsigned word, int pair, float first, float second) {
  const unsigned halves = float16_pair_of_fp8<kFp8>(word, pair);
  const float values[2] = {__fmul_rn(ptx::float_of_float16(halves), first),
                           __fmul_rn(ptx::float_of_float16(halves >> 16), second)};
  unsigned rounded;
  narrow<kType, false>(values, &rounded);
  return rounded;
}

// The same for codes that are numbers, where NaN is left to others, who ask has_nan(): of e4m3 to
// bfloat16 without a conversion 5 instructions for a pair, of which 3 are multiplications. With the
// others they go to two units of a multiprocessor, not to one.
template <DType kFp8, DType kType>
inline constexpr bool kHasFinitePairs =
    kFp8 == DType::kE4M3 && kType == DType::kBFloat16 && !ptx::kHasFp8Conversions;

// The unit that finite_pair() counts in.
template <DType kFp8, DType kType>
inline constexpr float kFinitePairUnit = kHasFinitePairs<kFp8, kType> ? 1.0f : kPairUnit<kFp8>;

template <DType kFp8, DType kType>
__device__ inline unsigned finite_pair(unsigned word, int pair) {
  if constexpr (!kHasFinitePairs<kFp8, kType>) {
    return pair_in_units<kFp8, kType>(word, pair);
  } else {
    // Codes in the lower bytes of two halves. Moved left by 4, behind their sign, they are 2^-120
    // of their value, subnormal numbers among them.
    const unsigned codes = __byte_perm(word, 0, pair == 0 ? 0x4140 : 0x4342);
    const unsigned signs = codes & 0x00800080u;
    constexpr unsigned kUnits = 0x7B807B80u;  // 2^120, twice
    return ptx::multiply_bfloat16_pair(codes * 16 + signs * (256 - 16), kUnits);
  }
}

// Puts a mark where a code of the word is NaN, if finite_pair() does not know it.
template <DType kFp8, DType kType>
__device__ inline void mark_nan(unsigned word, unsigned& marks) {
  if constexpr (kHasFinitePairs<kFp8, kType>) marks |= (word & 0x7F7F7F7Fu) + 0x01010101u;
}

__device__ inline bool has_nan(unsigned marks) { return (marks & 0x80808080u) != 0; }

}  // namespace octofold::numeric
