// Conversions without the instructions, beside the CPU backend's formats: every code, and every
// FP32 number whose rounding could go wrong.
#include "octofold/types.h"

#include "cpu/number_formats.h"
#include "kernels/numeric/format_bits.h"
#include "support/test.h"

namespace octofold::numeric {
namespace {

template <DType kFp8, typename Format>
void expect_same_codes(std::uint32_t bits) {
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    const auto value = std::bit_cast<float>(bits | sign);
    ASSERT_EQ(fp8_of_float<kFp8>(value), Format::encode(value, Overflow::kSaturate))
        << std::hex << (bits | sign);
  }
}

// Every value of the upper 16 bits, with lower halves at, below and above what decides.
template <DType kFp8, typename Format>
void expect_same_rounding() {
  for (std::uint32_t upper = 0; upper < 0x8000; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      expect_same_codes<kFp8, Format>(upper << 16 | lower);
    }
  }
}

template <DType kFp8, typename Format>
void expect_same_values() {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = float_of_fp8<kFp8>(code | 0xABCDEF00u);
    const float expected = Format::decode(static_cast<std::uint8_t>(code));
    if (expected != expected) {
      EXPECT_NE(value, value) << code;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value), std::bit_cast<std::uint32_t>(expected))
          << code;
    }
  }
}

TEST(Fp8BitsTest, RoundsE4M3) { expect_same_rounding<DType::kE4M3, cpu::E4M3>(); }
TEST(Fp8BitsTest, RoundsE5M2) { expect_same_rounding<DType::kE5M2, cpu::E5M2>(); }
TEST(Fp8BitsTest, DecodesE4M3) { expect_same_values<DType::kE4M3, cpu::E4M3>(); }
TEST(Fp8BitsTest, DecodesE5M2) { expect_same_values<DType::kE5M2, cpu::E5M2>(); }

}  // namespace
}  // namespace octofold::numeric
