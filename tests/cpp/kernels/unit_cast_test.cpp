// The casts' arithmetic of the GPU, as its source has it, compiled for the host and held against
// the CPU backend's: a unit's scale, and the code of a value divided by it.
#include "kernels/numeric/unit_cast.h"

#include "cpu/number_formats.h"
#include "cpu/scale.h"
#include "kernels/numeric/caster.h"
#include "kernels/numeric/format_bits.h"
#include "kernels/numeric/given_caster.h"
#include "support/test.h"

namespace octofold::numeric {
namespace {

using config::CastArithmetic;
using config::CastRule;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

bool same(float left, float right) {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  return (left != left && right != right) || bits(left) == bits(right);
}

// Infinity, NaN, 0, subnormal numbers and the ends of the range, and numbers of any exponent.
std::vector<float> magnitudes(int count) {
  std::vector<float> values;
  for (const std::uint32_t bits : {0u, 1u, 2u, 0x7FFFFFu, 0x800000u, 0x800001u, 0x3F800000u,
                                   0x7F7FFFFFu, 0x7F800000u, 0x7FC00000u}) {
    values.push_back(float_of(bits));
  }
  for (std::uint32_t exponent = 1; exponent < 255; ++exponent) {
    for (const std::uint32_t mantissa : {0u, 1u, 0x600000u, 0x7FFFFFu}) {
      values.push_back(float_of(exponent << 23 | mantissa));
    }
  }
  std::mt19937 random(20261121);
  for (int i = 0; i < count; ++i) values.push_back(float_of(random() & 0x7FFFFFFFu));
  return values;
}

template <CastRule kRule, DType kIn, DType kFp8, bool kPowerOfTwo>
void expect_same_scales() {
  const config::Fp8Format& format =
      kFp8 == DType::kE4M3 ? config::kE4M3Format : config::kE5M2Format;
  for (const float amax : magnitudes(100'000)) {
    const UnitCast device = unit_cast<kRule, kIn, kFp8, kPowerOfTwo>(amax);
    const cpu::UnitCast host = cpu::unit_cast(kRule, kIn, format, kPowerOfTwo, amax);
    ASSERT_TRUE(same(device.scale, host.scale)) << amax << ": " << device.scale;
    ASSERT_TRUE(same(device.operand, host.operand)) << amax << ": " << device.operand;
  }
}

template <CastRule kRule, DType kIn>
void expect_same_scales() {
  expect_same_scales<kRule, kIn, DType::kE4M3, false>();
  expect_same_scales<kRule, kIn, DType::kE4M3, true>();
  expect_same_scales<kRule, kIn, DType::kE5M2, false>();
  expect_same_scales<kRule, kIn, DType::kE5M2, true>();
}

template <CastRule kRule>
void expect_same_scales() {
  expect_same_scales<kRule, DType::kFloat32>();
  if constexpr (kRule.reads_type()) {
    expect_same_scales<kRule, DType::kFloat16>();
    expect_same_scales<kRule, DType::kBFloat16>();
  }
}

TEST(DeviceUnitCastTest, ScalesAreTheCpuBackends) {
  [&]<std::size_t... kRow>(std::index_sequence<kRow...>) {
    (expect_same_scales<config::kCastRules[kRow].value>(), ...);
  }(std::make_index_sequence<std::size(config::kCastRules)>());
  expect_same_scales<config::kTransformerEngineRule>();
}

template <DType kDType, typename Format>
void expect_same_roundings() {
  for (const float magnitude : magnitudes(1'000'000)) {
    for (const float value : {magnitude, -magnitude}) {
      const float host = Format::decode(Format::encode(value, Overflow::kNan));
      ASSERT_TRUE(same(round_to<kDType>(value), host)) << value;
    }
  }
  // All numbers of the format, what lies halfway to the next, and the neighbours of both.
  for (unsigned code = 0; code < 0x8000; ++code) {
    const auto next = static_cast<std::uint16_t>(code + 1);
    const float number = Format::decode(static_cast<std::uint16_t>(code));
    const float halfway = number + (Format::decode(next) - number) / 2;
    for (const float middle : {number, halfway}) {
      for (const float value :
           {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kInfinity)}) {
        const float host = Format::decode(Format::encode(value, Overflow::kNan));
        ASSERT_TRUE(same(round_to<kDType>(value), host)) << value;
      }
    }
  }
}

TEST(RoundToTest, RoundsAsTheCpuBackendDoes) {
  expect_same_roundings<DType::kFloat16, cpu::Float16>();
  expect_same_roundings<DType::kBFloat16, cpu::BFloat16>();
  EXPECT_TRUE(same(round_to<DType::kFloat32>(0x1.FFFFFEp-3f), 0x1.FFFFFEp-3f));
}

template <DType kIn>
void expect_same_quotients() {
  std::mt19937 random(3);
  std::int64_t zeros = 0;
  for (const float scale : magnitudes(100'000)) {
    const auto caster = Caster<CastArithmetic::kDivideInType, kIn>::make(scale);
    const cpu::UnitCast host{CastArithmetic::kDivideInType, kIn, scale, scale};
    for (const float x :
         {0.0f, -0.0f, -scale, 448 * scale, -0x1p-149f, kInfinity,
          float_of(static_cast<std::uint32_t>(random())), -0x1p-140f * scale, -0x1p-25f * scale}) {
      float device[1] = {round_to<kIn>(x)}, expected[1] = {device[0]};
      caster.template apply<false>(device);
      host.apply(expected);
      ASSERT_TRUE(same(device[0], expected[0])) << x << " / " << scale;
      ASSERT_FALSE(same(device[0], -0.0f)) << x << " / " << scale;
      zeros += device[0] == 0;
    }
  }
  EXPECT_GT(zeros, 100'000);
}

TEST(DivideInTypeTest, QuotientsAreTheCpuBackends) {
  expect_same_quotients<DType::kFloat32>();
  expect_same_quotients<DType::kFloat16>();
  expect_same_quotients<DType::kBFloat16>();
}

// Dividers of numbers that were FP32, and of those that fill 11 bits at most.
template <typename Divider>
class DividerTest : public testing::Test {
 protected:
  static float divide(float x, float scale) {
    const Divider divider = Divider::make(scale);
    float values[1] = {x};
    if (divider.is_unusual()) {
      divider.template apply<true>(values);
    } else {
      divider.template apply<false>(values);
    }
    return values[0];
  }

  static constexpr std::uint32_t kLastBit = Divider::kWide ? 1 : 1 << 13;

  static float shortened(float x) {
    return float_of(std::bit_cast<std::uint32_t>(x) & ~(kLastBit - 1));
  }
};
using Dividers = testing::Types<Caster<CastArithmetic::kDivide, DType::kFloat32>,
                                Caster<CastArithmetic::kDivide, DType::kBFloat16>>;
TYPED_TEST_SUITE(DividerTest, Dividers);

template <config::Fp8Format kFormat>
bool same_codes(float left, float right) {
  using Fp8 = cpu::Fp8<kFormat>;
  return Fp8::encode(left, Overflow::kSaturate) == Fp8::encode(right, Overflow::kSaturate) &&
         Fp8::encode(left, Overflow::kNan) == Fp8::encode(right, Overflow::kNan);
}

// Scales of every kind, and what their units may hold: nothing much larger than 2^16 scales. No
// scale lies between the largest amax / 448 and 2^127, which the largest power of two stands for.
TYPED_TEST(DividerTest, CodesAreThoseOfTheQuotient) {
  std::mt19937 random(7);
  for (const float scale : magnitudes(100'000)) {
    if (scale > std::numeric_limits<float>::max() / 448 && scale != 0x1p127f && scale < kInfinity) {
      continue;
    }
    std::vector<float> values{0.0f, scale, 448 * scale, 57344 * scale};
    for (int i = 0; i < 50; ++i) {
      const int exponent = static_cast<int>(random() % 40) - 22;
      values.push_back(
          std::ldexp(scale * (1 + static_cast<float>(random() % 4096) / 4096), exponent));
    }
    for (const float value : values) {
      const float magnitude = this->shortened(value);
      // An infinite x has an infinite scale, or 2^127 in its place.
      if (magnitude == kInfinity && scale < 0x1p127f) continue;
      for (const float x : {magnitude, -magnitude}) {
        const float quotient = this->divide(x, scale);
        ASSERT_TRUE(same_codes<config::kE4M3Format>(quotient, x / scale)) << x << " / " << scale;
        ASSERT_TRUE(same_codes<config::kE5M2Format>(quotient, x / scale)) << x << " / " << scale;
      }
    }
  }
}

// Given scales say nothing about x: any pair of numbers, infinity and NaN among them.
TYPED_TEST(DividerTest, GivenScalesDivideAnyNumber) {
  constexpr DType kIn = TypeParam::kWide ? DType::kFloat32 : DType::kBFloat16;
  std::mt19937 random(11);
  const std::vector<float> numbers = magnitudes(2'000);
  for (const float size : magnitudes(2'000)) {
    for (const float scale : {size, -size}) {
      const auto caster = GivenCaster<CastArithmetic::kDivide, kIn>::make(scale);
      for (int i = 0; i < 100; ++i) {
        const float any = this->shortened(numbers[random() % numbers.size()]);
        const int exponent = static_cast<int>(random() % 60) - 30;
        const float near = this->shortened(
            std::ldexp(size * (1 + static_cast<float>(random() % 4096) / 4096), exponent));
        for (const float x : {any, -any, near, -near}) {
          float values[1] = {x};
          if (caster.is_unusual()) {
            caster.template apply<true>(values);
          } else {
            caster.template apply<false>(values);
          }
          ASSERT_TRUE(same_codes<config::kE4M3Format>(values[0], x / scale)) << x << " / " << scale;
          ASSERT_TRUE(same_codes<config::kE5M2Format>(values[0], x / scale)) << x << " / " << scale;
        }
      }
    }
  }
}

int side(float value, float point) { return value < point ? -1 : value > point; }

// The address sanitizer, which has nothing to look at here, makes this take minutes.
#ifdef __SANITIZE_ADDRESS__
constexpr std::uint32_t kStep = 61;
#else
constexpr std::uint32_t kStep = 1;
#endif

// Exponents do not matter, so x goes through all numbers of [1, 2). The points at which rounding to
// FP8 decides are odd numbers of at most 5 bits times powers of two; near one of them x / scale is
// for the scales next to x / point only.
template <typename Divide>
std::int64_t count_wrong_sides(float point, std::uint32_t last_bit, Divide&& divide) {
  constexpr int kNeighbours = 4;
  std::int64_t wrong = 0;
  for (std::uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += kStep * last_bit) {
    const float x = float_of(0x3F800000u | mantissa);
    const std::uint32_t nearest = std::bit_cast<std::uint32_t>(x / point);
    for (int i = -kNeighbours; i <= kNeighbours; ++i) {
      const float scale = float_of(nearest + static_cast<std::uint32_t>(i));
      wrong += side(divide(x, scale), point) != side(x / scale, point);
    }
  }
  return wrong;
}

TYPED_TEST(DividerTest, EveryRoundingToFp8IsDecidedAsByTheQuotient) {
  std::array<std::int64_t, 16> wrong{};
  {
    std::vector<std::jthread> threads;
    for (std::size_t worker = 0; worker < 2; ++worker) {
      threads.emplace_back([&, worker] {
        for (std::size_t i = worker; i < wrong.size(); i += 2) {
          wrong[i] =
              count_wrong_sides(static_cast<float>(2 * i + 1), this->kLastBit,
                                [](float x, float scale) { return TestFixture::divide(x, scale); });
        }
      });
    }
  }
  for (std::size_t i = 0; i < wrong.size(); ++i) EXPECT_EQ(wrong[i], 0) << "point " << 2 * i + 1;
}

}  // namespace
}  // namespace octofold::numeric
