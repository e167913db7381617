// Scales whose values can be read off the rules. Byte-for-byte comparison of whole casts with
// NumPy is tests/python/test_quantize.py's.
#include "cpu/scale.h"

#include "support/test.h"

namespace octofold::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

UnitCast cast(const config::CastRule& rule, float amax, bool power_of_two = false) {
  return unit_cast(rule, DType::kFloat32, config::kE4M3Format, power_of_two, amax);
}

float applied(const UnitCast& cast, float x) {
  cast.apply({&x, 1});
  return x;
}

TEST(UnitCastTest, LargestMagnitudeBecomesLargestCode) {
  for (const config::CastRuleRow& row : config::kCastRules) {
    for (const float amax : {2e-3f, 0.7f, 448.0f, 1e6f}) {
      EXPECT_NEAR(applied(cast(row.value, amax), amax), 448.0f, 1e-3f) << row.name;
      EXPECT_NEAR(cast(row.value, amax).scale * 448.0f / amax, 1.0f, 1e-6f) << row.name;
    }
  }
}

TEST(UnitCastTest, FloorsDifferByProfile) {
  EXPECT_EQ(cast(config::kDeepGemmRule, 0.0f).scale, 1e-4f / 448.0f);
  EXPECT_EQ(cast(config::kVllmRule, 0.0f).scale, 1e-10f / 448.0f);
  EXPECT_EQ(cast(config::kTransformerEngineRule, 0.0f).scale, 1.0f);
  EXPECT_EQ(cast(config::kTorchAoRule, 0.0f).scale, 1.0f / static_cast<float>(448.0 / 1e-12));
  EXPECT_EQ(cast(config::kDeepSeekRule, 0.0f).scale, 1e-4f * (1.0f / 448.0f));
  EXPECT_EQ(applied(cast(config::kDeepSeekRule, 0.0f), 0.0f), 0.0f);
  EXPECT_EQ(cast(config::kTransformersRule, 0.0f).scale, 1.0f);
  EXPECT_EQ(cast(config::kVllmPerTokenRule, 0.0f).scale, 1.0f / (448.0f * 512.0f));
  EXPECT_TRUE(std::isnan(applied(cast(config::kTorchAoTensorRule, 0.0f), 0.0f)));
  EXPECT_EQ(cast(config::kCompressedTensorsRule, 0.0f).scale, 0x1p-23f);
  EXPECT_EQ(cast(config::kCompressedTensorsRule, 448e-30f).scale, 1e-30f);
  EXPECT_EQ(cast(config::kCompressedTensors012Rule, 0.0f).scale, 0x1p-23f);
  EXPECT_EQ(cast(config::kCompressedTensors012Rule, 448e-30f).scale, 0x1p-23f);
}

TEST(UnitCastTest, SomeRulesWorkInTheTypeOfTheInput) {
  const auto scale = [](const config::CastRule& rule, DType in, float amax) {
    return unit_cast(rule, in, config::kE4M3Format, false, amax).scale;
  };
  for (const auto& rule : {config::kTorchAoTensorRule, config::kCompressedTensorsRule}) {
    EXPECT_EQ(scale(rule, DType::kFloat32, 1.0f), 1.0f / 448.0f);
    EXPECT_EQ(scale(rule, DType::kFloat16, 1.0f), 0x1.248p-9f);
    EXPECT_EQ(scale(rule, DType::kBFloat16, 1.0f), 0x1.24p-9f);
  }
  EXPECT_EQ(scale(config::kCompressedTensorsRule, DType::kFloat16, 0.0f), 0x1p-10f);
  EXPECT_EQ(scale(config::kCompressedTensorsRule, DType::kFloat16, 1e-5f), 0x1p-10f);
  EXPECT_EQ(scale(config::kCompressedTensorsRule, DType::kBFloat16, 0.0f), 0x1p-7f);
  EXPECT_EQ(scale(config::kDeepGemmRule, DType::kBFloat16, 1.0f), 1.0f / 448.0f);

  // 1 / 3 in FP32, FP16 and BF16.
  const auto third = [](DType in) {
    return applied({config::CastArithmetic::kDivideInType, in, 3.0f, 3.0f}, 1.0f);
  };
  EXPECT_EQ(third(DType::kFloat32), 0x1.555556p-2f);
  EXPECT_EQ(third(DType::kFloat16), 0x1.554p-2f);
  EXPECT_EQ(third(DType::kBFloat16), 0x1.56p-2f);
  EXPECT_FALSE(std::signbit(applied(cast(config::kCompressedTensorsRule, 1.0f), -0.0f)));
  EXPECT_TRUE(std::signbit(applied(cast(config::kTorchAoTensorRule, 1.0f), -0.0f)));
}

TEST(UnitCastTest, PowersOfTwoRoundTheSafeWay) {
  EXPECT_EQ(cast(config::kDeepGemmRule, 448.0f, true).scale, 1.0f);
  EXPECT_EQ(cast(config::kDeepGemmRule, std::nextafter(448.0f, 500.0f), true).scale, 2.0f);
  EXPECT_EQ(cast(config::kTransformerEngineRule, 300.0f, true).scale, 1.0f);
  EXPECT_EQ(cast(config::kTransformerEngineRule, 449.0f, true).scale, 2.0f);
  EXPECT_EQ(cast(config::kTorchAoRule, 449.0f, true).scale, 2.0f);
  EXPECT_EQ(cast(config::kVllmRule, 449.0f, true).scale, 2.0f);
  EXPECT_EQ(cast(config::kVllmRule, 0.0f, true).scale, 0x1p-33f);  // 1e-10, rounded up
}

TEST(UnitCastTest, InfinityAndNan) {
  EXPECT_EQ(cast(config::kDeepGemmRule, kInfinity).scale, kInfinity);
  EXPECT_TRUE(std::isnan(cast(config::kDeepGemmRule, kNan).scale));
  EXPECT_EQ(cast(config::kDeepGemmRule, kNan, true).scale, 0x1p127f);
  EXPECT_EQ(cast(config::kVllmRule, kInfinity, true).scale, kInfinity);
  EXPECT_EQ(cast(config::kTransformerEngineRule, kInfinity).scale, 1.0f);
  EXPECT_EQ(cast(config::kTransformerEngineRule, kNan).scale, 1.0f);
  // The factor 448 / amax overflows: the largest finite number stands in.
  EXPECT_EQ(cast(config::kTransformerEngineRule, 1e-38f).operand,
            std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace octofold::cpu
