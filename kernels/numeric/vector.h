// Numbers in registers: several of one type, packed into 32-bit words in memory order, to and from
// FP32, and the largest magnitude among them. The CPU backend's number_formats.h does the same.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/numeric/format_bits.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/convert.h"
#include "kernels/shared/cast_rule.h"

namespace octofold::numeric {

inline constexpr unsigned kNanBits = 0x7FFFFFFF;

// Numbers of `kType` in a word.
template <DType kType>
inline constexpr int kPerWord = 4 / size_of(kType);

// The FP32 values of kCount numbers. Told kAgain, it widens 16-bit numbers by other instructions to
// the same effect: the assembler, where it sees that values are computed twice, keeps them in
// between and runs out of registers.
template <DType kType, bool kAgain = false, int kCount>
__device__ inline void widen(const unsigned* words, float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const unsigned word = words[i / kPerWord<kType>];
    const bool low = i % 2 == 0;
    if constexpr (kType == DType::kFloat32) {
      values[i] = __uint_as_float(word);
    } else if constexpr (kType == DType::kBFloat16 && kAgain) {
      values[i] = __uint_as_float(__byte_perm(word, 0, low ? 0x1044 : 0x3244));
    } else if constexpr (kType == DType::kBFloat16) {
      values[i] = __uint_as_float(low ? word << 16 : word & 0xFFFF0000u);
    } else if constexpr (kType == DType::kFloat16) {
      const unsigned halves = kAgain ? __byte_perm(word, 0, 0x1032) : word;
      values[i] = ptx::float_of_float16(low != kAgain ? halves : halves >> 16);
    } else if constexpr (!ptx::kHasFp8Conversions) {
      values[i] = float_of_fp8<kType>(word >> i % 4 * 8);
    } else {
      const unsigned pair = i % 4 < 2 ? word : word >> 16;
      const unsigned halves =
          kType == DType::kE4M3 ? ptx::float16_pair_of_e4m3(pair) : ptx::float16_pair_of_e5m2(pair);
      values[i] = ptx::float_of_float16(low ? halves : halves >> 16);
    }
  }
}

// Two FP8 codes, the first in the low byte, of what lies beyond the largest finite number that
// one's.
template <DType kFp8>
__device__ inline unsigned saturated_pair(float first, float second) {
  if constexpr (!ptx::kHasFp8Conversions) {
    return fp8_of_float<kFp8>(first) | fp8_of_float<kFp8>(second) << 8;
  } else {
    return kFp8 == DType::kE4M3 ? ptx::e4m3_pair(first, second) : ptx::e5m2_pair(first, second);
  }
}

// The same. Without kSaturate, what rounds beyond the largest finite number becomes infinity, or
// NaN where the format has no infinity.
template <DType kFp8, bool kSaturate>
__device__ inline unsigned encode_pair(float first, float second) {
  if constexpr (kFp8 == DType::kE4M3) {
    if constexpr (!kSaturate) {
      constexpr float kTie = 464;  // between 448 and 512, the next power of two; it rounds down
      if (fabsf(first) > kTie) first = __uint_as_float(kNanBits);
      if (fabsf(second) > kTie) second = __uint_as_float(kNanBits);
    }
    return saturated_pair<kFp8>(first, second);
  } else {
    unsigned pair = saturated_pair<kFp8>(first, second);
    if constexpr (!kSaturate) {
      constexpr float kTie = 61440;  // between 57344 and 65536; it rounds up
      // The code after the largest finite number's is infinity's.
      if (fabsf(first) >= kTie) pair += 1;
      if (fabsf(second) >= kTie) pair += 0x100;
    }
    return pair;
  }
}

// kCount FP32 values, rounded and packed; the last word of fewer numbers is filled up with zeros.
template <DType kType, bool kSaturate, int kCount>
__device__ inline void narrow(const float (&values)[kCount], unsigned* words) {
  if constexpr (kType == DType::kFloat32) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) words[i] = __float_as_uint(values[i]);
  } else {
    static_assert(kCount % kPerWord<kType> == 0);
#pragma unroll
    for (int i = 0; i < kCount; i += kPerWord<kType>) {
      unsigned& word = words[i / kPerWord<kType>];
      if constexpr (kType == DType::kBFloat16) {
        if constexpr (ptx::kHasAmpere) {
          word = ptx::bfloat16_pair(values[i], values[i + 1]);
        } else {
          const auto rounded = [](float value) {
            return value != value ? kNanBits : __float_as_uint(round_to<kType>(value));
          };
          word = __byte_perm(rounded(values[i]), rounded(values[i + 1]), 0x7632);
        }
      } else if constexpr (kType == DType::kFloat16) {
        word = ptx::float16_pair(values[i], values[i + 1]);
      } else {
        const unsigned low = encode_pair<kType, kSaturate>(values[i], values[i + 1]);
        const unsigned high = encode_pair<kType, kSaturate>(values[i + 2], values[i + 3]);
        word = low | high << 16;
      }
    }
  }
}

// The largest magnitudes of numbers at the same place in their words. Magnitudes of any type, taken
// as integers, have the order of their values, with NaN above infinity, so NaN is handed on.
template <DType kType>
__device__ inline unsigned magnitude(unsigned word) {
  return word & (kType == DType::kFloat32 ? 0x7FFFFFFFu : 0x7FFF7FFFu);
}

template <DType kType>
__device__ inline unsigned larger(unsigned left, unsigned right) {
  if constexpr (kType == DType::kFloat32) {
    return left > right ? left : right;
  } else {
    return ptx::max_u16_pair(left, right);
  }
}

// The FP32 value of the largest magnitude in a word.
template <DType kType>
__device__ inline float largest(unsigned magnitudes) {
  if constexpr (kType == DType::kFloat32) {
    return __uint_as_float(magnitudes);
  } else {
    const unsigned low = magnitudes & 0xFFFFu, high = magnitudes >> 16;
    const unsigned bits = low > high ? low : high;
    return kType == DType::kFloat16 ? ptx::float_of_float16(bits) : __uint_as_float(bits << 16);
  }
}

}  // namespace octofold::numeric
