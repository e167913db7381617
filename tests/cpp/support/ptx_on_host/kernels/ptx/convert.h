// Conversions by the CPU backend's formats.
#pragma once

#include "octofold/types.h"

#include "cpu/number_formats.h"

namespace octofold::ptx {

template <typename Format>
unsigned code_pair(float first, float second) {
  const unsigned low = Format::encode(first, Overflow::kSaturate);
  const unsigned high = Format::encode(second, Overflow::kSaturate);
  return low | high << 8 * sizeof(typename Format::Storage);
}

inline unsigned e4m3_pair(float first, float second) { return code_pair<cpu::E4M3>(first, second); }
inline unsigned e5m2_pair(float first, float second) { return code_pair<cpu::E5M2>(first, second); }
inline unsigned float16_pair(float first, float second) {
  return code_pair<cpu::Float16>(first, second);
}
inline unsigned bfloat16_pair(float first, float second) {
  return code_pair<cpu::BFloat16>(first, second);
}

inline float float_of_float16(unsigned bits) {
  return cpu::Float16::decode(static_cast<std::uint16_t>(bits));
}
inline unsigned float16_pair_of_e4m3(unsigned codes, bool upper = false) {
  const unsigned pair = upper ? codes >> 16 : codes;
  return float16_pair(cpu::E4M3::decode(pair & 0xFF), cpu::E4M3::decode(pair >> 8 & 0xFF));
}
inline unsigned float16_pair_of_e5m2(unsigned pair) {
  return float16_pair(cpu::E5M2::decode(pair & 0xFF), cpu::E5M2::decode(pair >> 8 & 0xFF));
}

inline unsigned max_u16_pair(unsigned left, unsigned right) {
  const auto larger = [](unsigned first, unsigned second) {
    return first < second ? second : first;
  };
  return larger(left & 0xFFFF, right & 0xFFFF) | larger(left >> 16, right >> 16) << 16;
}

}  // namespace octofold::ptx
