// FP8 codes without the instructions, and decoded in pairs, beside the CPU backend's formats: every
// code, at every place of a word with every other code beside it, and every FP32 number whose
// rounding could go wrong.
#include "octofold/types.h"

#include "cpu/number_formats.h"
#include "kernels/numeric/decode_pairs.h"
#include "kernels/numeric/format_bits.h"
#include "support/test.h"

namespace octofold::numeric {
namespace {

struct E4M3 : cpu::E4M3 {
  static constexpr DType kType = DType::kE4M3;
};
struct E5M2 : cpu::E5M2 {
  static constexpr DType kType = DType::kE5M2;
};

template <typename Format>
class Fp8CodesTest : public testing::Test {
 protected:
  static bool is_value_of(float value, unsigned code) {
    const float expected = Format::decode(static_cast<std::uint8_t>(code));
    if (expected != expected) return value != value;
    return std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(expected);
  }
  static float half_of(unsigned pair, int place) {
    return ptx::float_of_float16(pair >> 16 * place & 0xFFFF);
  }
};
using Formats = testing::Types<E4M3, E5M2>;
TYPED_TEST_SUITE(Fp8CodesTest, Formats);

// Every value of the upper 16 bits, with lower halves at, below and above what decides.
TYPED_TEST(Fp8CodesTest, Rounds) {
  for (std::uint32_t upper = 0; upper <= 0xFFFF; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      ASSERT_EQ(fp8_of_float<TypeParam::kType>(value),
                TypeParam::encode(value, Overflow::kSaturate))
          << std::hex << upper << " " << lower;
    }
  }
}

TYPED_TEST(Fp8CodesTest, Decodes) {
  for (unsigned code = 0; code < 256; ++code) {
    EXPECT_TRUE(this->is_value_of(float_of_fp8<TypeParam::kType>(code | 0xABCDEF00u), code))
        << code;
  }
}

TYPED_TEST(Fp8CodesTest, DecodesPairs) {
  constexpr DType kFp8 = TypeParam::kType;
  for (unsigned code = 0; code < 256; ++code) {
    for (unsigned other = 0; other < 256; ++other) {
      for (int place = 0; place < 4; ++place) {
        const unsigned word = std::rotl(code | other * 0x01010100u, 8 * place);
        const unsigned values = float16_pair_of_fp8<kFp8>(word, place / 2);
        const unsigned in_units = float16_pair_in_units<kFp8>(word, place / 2);
        const unsigned bfloat16 = pair_in_units<kFp8, DType::kBFloat16>(word, place / 2);
        const float wide = std::bit_cast<float>(bfloat16 >> 16 * (place % 2) << 16);
        ASSERT_EQ((pair_in_units<kFp8, DType::kFloat16>(word, place / 2)), in_units);
        for (const float value : {wide * kPairUnit<kFp8>, this->half_of(values, place % 2),
                                  this->half_of(in_units, place % 2) * kPairUnit<kFp8>}) {
          ASSERT_TRUE(this->is_value_of(value, code)) << code << " " << other;
        }
      }
    }
  }
}

}  // namespace
}  // namespace octofold::numeric
