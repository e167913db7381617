// FP32 to and from the narrow formats, one element at a time, rounding to nearest even. Every NaN
// that is produced is the positive all-ones one, as Hopper's conversion instructions give it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "octofold/types.h"

#include "kernels/shared/cast_rule.h"

namespace octofold::cpu {

/// FP32 to a format of fewer bits whose exponent range lies within FP32's: the code of |value|
/// before any rule of overflow, so it may run past the format's largest. NaN gives a huge code.
template <int kMantissaBits, int kBias>
constexpr std::uint32_t round_magnitude(float value) {
  constexpr int kDropped = 23 - kMantissaBits;
  constexpr int kMinExponent = 1 - kBias;  // of the smallest normal number
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
  // Below the smallest normal, one FP32 addition rounds to the format's fixed subnormal step: the
  // magic constant's last bit is worth just that.
  constexpr float kMagic = std::bit_cast<float>(
      static_cast<std::uint32_t>(127 + kMinExponent - kMantissaBits + 23) << 23);
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(127 + kMinExponent) << 23;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) + kMagic) -
      std::bit_cast<std::uint32_t>(kMagic);
  const std::uint32_t odd = (bits >> kDropped) & 1;
  const std::uint32_t normal = ((bits + ((1u << (kDropped - 1)) - 1) + odd) >> kDropped) -
                               (static_cast<std::uint32_t>(127 - kBias) << kMantissaBits);
  return bits < kSmallestNormal ? subnormal : normal;
}

/// One FP8 format at compile time.
template <config::Fp8Format kFormat>
struct Fp8 {
  using Storage = std::uint8_t;
  static constexpr config::Fp8Format format = kFormat;

  static constexpr std::uint8_t encode(float value, Overflow overflow) {
    const std::uint32_t code = round_magnitude<kFormat.mantissa_bits, kFormat.bias>(value);
    const auto sign =
        static_cast<std::uint8_t>((std::bit_cast<std::uint32_t>(value) >> 24) & 0x80u);
    if (value != value) return config::kFp8Nan;
    if (code <= kFormat.largest_code) return static_cast<std::uint8_t>(code | sign);
    if (overflow == Overflow::kSaturate) {
      return static_cast<std::uint8_t>(kFormat.largest_code | sign);
    }
    return kFormat.has_infinity ? static_cast<std::uint8_t>((kFormat.largest_code + 1) | sign)
                                : config::kFp8Nan;
  }

  static constexpr float decode(std::uint8_t code) { return kValues[code]; }

 private:
  static constexpr float value_of(unsigned code) {
    const unsigned magnitude = code & 0x7Fu;
    const unsigned sign_bit = (code & 0x80u) << 24;
    if (magnitude > kFormat.largest_code) {
      const bool infinite = kFormat.has_infinity && magnitude == kFormat.largest_code + 1u;
      return std::bit_cast<float>(sign_bit | (infinite ? 0x7F800000u : 0x7FFFFFFFu));
    }
    const unsigned exponent = magnitude >> kFormat.mantissa_bits;
    const unsigned mantissa = magnitude & ((1u << kFormat.mantissa_bits) - 1);
    const unsigned hidden = exponent == 0 ? 0 : 1u << kFormat.mantissa_bits;
    const int power =
        (exponent == 0 ? 1 : static_cast<int>(exponent)) - kFormat.bias - kFormat.mantissa_bits;
    const float step = std::bit_cast<float>(static_cast<std::uint32_t>(127 + power) << 23);
    const float value = static_cast<float>(hidden + mantissa) * step;
    return sign_bit != 0 ? -value : value;
  }

  static constexpr std::array<float, 256> kValues = [] {
    std::array<float, 256> values{};
    for (unsigned code = 0; code < 256; ++code) values[code] = value_of(code);
    return values;
  }();
};

using E4M3 = Fp8<config::kE4M3Format>;
using E5M2 = Fp8<config::kE5M2Format>;

struct Float16 {
  using Storage = std::uint16_t;

  static constexpr std::uint16_t encode(float value, Overflow) {
    const std::uint32_t code = round_magnitude<10, 15>(value);
    const auto sign =
        static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) >> 16) & 0x8000u);
    if (value != value) return 0x7FFF;
    return static_cast<std::uint16_t>((code < 0x7C00u ? code : 0x7C00u) | sign);
  }

  static constexpr float decode(std::uint16_t code) {
    // The exponent is moved by a multiplication, which normalizes subnormals on its way.
    const std::uint32_t magnitude = (code & 0x7FFFu) << 13;
    const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000u) << 16;
    const bool special = magnitude >= 0x0F800000u;  // infinity or NaN
    const std::uint32_t bits =
        special ? magnitude | 0x7F800000u
                : std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    return std::bit_cast<float>(bits | sign);
  }
};

struct BFloat16 {
  using Storage = std::uint16_t;

  static constexpr std::uint16_t encode(float value, Overflow) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (value != value) return 0x7FFF;
    return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
  }

  static constexpr float decode(std::uint16_t code) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
  }
};

struct Float32 {
  using Storage = float;
  static constexpr float encode(float value, Overflow) { return value; }
  static constexpr float decode(float value) { return value; }
};

/// Calls body(Format{}) with the format of `dtype`, so that loops are compiled once per format.
template <typename Body>
void with_format(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kFloat32: return body(Float32{});
    case DType::kFloat16: return body(Float16{});
    case DType::kBFloat16: return body(BFloat16{});
    case DType::kE4M3: return body(E4M3{});
    case DType::kE5M2: return body(E5M2{});
    case DType::kInt32: break;  // refused by every operation that computes
  }
}

}  // namespace octofold::cpu
