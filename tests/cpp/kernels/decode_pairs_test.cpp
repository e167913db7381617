// Codes decoded in pairs, beside the CPU backend's formats: every code at every place of a word,
// with every other code beside it.
#include "kernels/numeric/decode_pairs.h"

#include "octofold/types.h"

#include "cpu/number_formats.h"
#include "support/test.h"

namespace octofold::numeric {
namespace {

template <typename Format>
bool is_value_of(float value, unsigned code) {
  const float expected = Format::decode(static_cast<std::uint8_t>(code));
  if (expected != expected) return value != value;
  return std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(expected);
}

float half_of(unsigned pair, int place) {
  return ptx::float_of_float16(pair >> 16 * place & 0xFFFF);
}

template <DType kFp8, typename Format>
void expect_same_values() {
  for (unsigned code = 0; code < 256; ++code) {
    for (unsigned other = 0; other < 256; ++other) {
      for (int place = 0; place < 4; ++place) {
        const unsigned word = std::rotl(code | other * 0x01010100u, 8 * place);
        const unsigned values = float16_pair_of_fp8<kFp8>(word, place / 2);
        const unsigned in_units = float16_pair_in_units<kFp8>(word, place / 2);
        const unsigned bfloat16 = pair_in_units<kFp8, DType::kBFloat16>(word, place / 2);
        const float wide = std::bit_cast<float>(bfloat16 >> 16 * (place % 2) << 16);
        ASSERT_TRUE(is_value_of<Format>(wide * kPairUnit<kFp8>, code)) << code << " " << other;
        ASSERT_EQ((pair_in_units<kFp8, DType::kFloat16>(word, place / 2)), in_units);
        ASSERT_TRUE(is_value_of<Format>(half_of(values, place % 2), code)) << code << " " << other;
        ASSERT_TRUE(is_value_of<Format>(half_of(in_units, place % 2) * kPairUnit<kFp8>, code))
            << code << " " << other;
      }
    }
  }
}

TEST(DecodePairsTest, DecodesE4M3) { expect_same_values<DType::kE4M3, cpu::E4M3>(); }
TEST(DecodePairsTest, DecodesE5M2) { expect_same_values<DType::kE5M2, cpu::E5M2>(); }

}  // namespace
}  // namespace octofold::numeric
