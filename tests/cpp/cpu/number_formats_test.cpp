#include "cpu/number_formats.h"

#include "support/matrix.h"
#include "support/test.h"

namespace octofold::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename Format>
class Fp8FormatTest : public testing::Test {};
using Fp8Formats = testing::Types<E4M3, E5M2>;
TYPED_TEST_SUITE(Fp8FormatTest, Fp8Formats);

template <typename Format>
double exact_value(unsigned code) {
  return test::decode_bits(code, Format::format.exponent_bits, Format::format.mantissa_bits,
                           Format::format.bias);
}

TYPED_TEST(Fp8FormatTest, DecodesEveryCodeExactly) {
  for (unsigned code = 0; code < 256; ++code) {
    const double expected = exact_value<TypeParam>(code);
    const auto actual = static_cast<double>(TypeParam::decode(static_cast<std::uint8_t>(code)));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << code;
    } else {
      EXPECT_EQ(actual, expected) << code;
      EXPECT_EQ(std::signbit(actual), std::signbit(expected)) << code;
    }
  }
}

TYPED_TEST(Fp8FormatTest, RoundTripsEveryFiniteCode) {
  for (unsigned code = 0; code < 256; ++code) {
    if (!std::isfinite(exact_value<TypeParam>(code))) continue;
    const float value = TypeParam::decode(static_cast<std::uint8_t>(code));
    EXPECT_EQ(TypeParam::encode(value, Overflow::kSaturate), code);
    EXPECT_EQ(TypeParam::encode(value, Overflow::kNan), code);
  }
}

// Around every midpoint of two neighbouring codes: just below, the tie, just above.
TYPED_TEST(Fp8FormatTest, RoundsToNearestEven) {
  for (unsigned code = 0; code < TypeParam::format.largest_code; ++code) {
    const float low = TypeParam::decode(static_cast<std::uint8_t>(code));
    const float high = TypeParam::decode(static_cast<std::uint8_t>(code + 1));
    const float tie = low + (high - low) / 2;  // exact: FP32 has bits to spare
    const unsigned even = code % 2 == 0 ? code : code + 1;
    for (const float sign : {1.0f, -1.0f}) {
      const unsigned sign_bit = sign < 0 ? 0x80 : 0;
      const auto encode = [&](float value) {
        return TypeParam::encode(sign * value, Overflow::kSaturate);
      };
      EXPECT_EQ(encode(std::nextafter(tie, 0.0f)), code | sign_bit);
      EXPECT_EQ(encode(tie), even | sign_bit);
      EXPECT_EQ(encode(std::nextafter(tie, kInfinity)), (code + 1) | sign_bit);
    }
  }
}

TEST(E4M3Test, OverflowsAsTheRuleSays) {
  const auto saturate = [](float value) { return E4M3::encode(value, Overflow::kSaturate); };
  const auto nan = [](float value) { return E4M3::encode(value, Overflow::kNan); };
  EXPECT_EQ(nan(464.0f), 0x7E);  // the tie with 480, which does not exist
  EXPECT_EQ(nan(std::nextafter(464.0f, kInfinity)), 0x7F);
  EXPECT_EQ(nan(-1e30f), 0x7F);
  EXPECT_EQ(nan(kInfinity), 0x7F);
  EXPECT_EQ(saturate(465.0f), 0x7E);
  EXPECT_EQ(saturate(-kInfinity), 0xFE);
  EXPECT_EQ(saturate(std::numeric_limits<float>::max()), 0x7E);
  EXPECT_EQ(saturate(kNan), 0x7F);
  EXPECT_EQ(saturate(-kNan), 0x7F);
}

TEST(E5M2Test, OverflowsAsTheRuleSays) {
  const auto saturate = [](float value) { return E5M2::encode(value, Overflow::kSaturate); };
  const auto nan = [](float value) { return E5M2::encode(value, Overflow::kNan); };
  EXPECT_EQ(nan(std::nextafter(61440.0f, 0.0f)), 0x7B);
  EXPECT_EQ(nan(61440.0f), 0x7C);
  EXPECT_EQ(nan(-kInfinity), 0xFC);
  EXPECT_EQ(nan(kNan), 0x7F);
  EXPECT_EQ(saturate(61440.0f), 0x7B);
  EXPECT_EQ(saturate(-kInfinity), 0xFB);
  EXPECT_EQ(saturate(kNan), 0x7F);
}

TEST(Float16Test, DecodesAndRoundTripsAllCodes) {
  for (unsigned code = 0; code < 65536; ++code) {
    const double expected = test::decode_bits(code, 5, 10, 15);
    const float actual = Float16::decode(static_cast<std::uint16_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << code;
      EXPECT_EQ(Float16::encode(actual, Overflow::kSaturate), 0x7FFF);
    } else {
      EXPECT_EQ(static_cast<double>(actual), expected) << code;
      EXPECT_EQ(Float16::encode(actual, Overflow::kSaturate), code);
    }
  }
  EXPECT_EQ(Float16::encode(65519.99f, Overflow::kSaturate), 0x7BFF);
  EXPECT_EQ(Float16::encode(65520.0f, Overflow::kSaturate), 0x7C00);
}

TEST(BFloat16Test, RoundTripsAllCodesAndRoundsToEven) {
  for (unsigned code = 0; code < 65536; ++code) {
    const float value = BFloat16::decode(static_cast<std::uint16_t>(code));
    const unsigned expected = std::isnan(value) ? 0x7FFF : code;
    EXPECT_EQ(BFloat16::encode(value, Overflow::kSaturate), expected);
  }
  EXPECT_EQ(BFloat16::encode(1.0f + 0x1p-8f, Overflow::kSaturate), 0x3F80);
  EXPECT_EQ(BFloat16::encode(1.0f + 0x1.8p-7f, Overflow::kSaturate), 0x3F82);
  EXPECT_EQ(BFloat16::encode(std::numeric_limits<float>::max(), Overflow::kSaturate), 0x7F80);
}

// Any FP32 bit pattern lands on the closest code: no other is nearer.
TYPED_TEST(Fp8FormatTest, RandomBitPatternsLandOnTheNearestCode) {
  test::Random random;
  for (int i = 0; i < 20000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    const unsigned code = TypeParam::encode(value, Overflow::kSaturate);
    if (std::isnan(value)) {
      ASSERT_EQ(code, 0x7Fu);
      continue;
    }
    const double error = std::abs(exact_value<TypeParam>(code) - static_cast<double>(value));
    for (const unsigned other : {code - 1, code + 1}) {
      const double neighbour = exact_value<TypeParam>(other & 0xFF);
      if (!std::isfinite(neighbour)) continue;
      ASSERT_LE(error, std::abs(neighbour - static_cast<double>(value))) << value;
    }
  }
}

}  // namespace
}  // namespace octofold::cpu
