// Scales whose values can be read off the rules. Byte-for-byte comparison of whole casts with
// NumPy is tests/python/test_quantize.py's.
#include "cpu/scale.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

namespace octofold::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

UnitCast cast(const config::CastRule& rule, float amax, bool power_of_two = false) {
  return unit_cast(rule, config::kE4M3Format, power_of_two, amax);
}

TEST(UnitCastTest, LargestMagnitudeBecomesLargestCode) {
  for (const auto& rule :
       {config::kDeepGemmRule, config::kVllmRule, config::kTransformerEngineRule,
        config::kTorchAoRule, config::kDeepSeekRule, config::kCompressedTensorsRule}) {
    for (const float amax : {1e-3f, 0.7f, 448.0f, 1e6f}) {
      EXPECT_NEAR(cast(rule, amax).apply(amax), 448.0f, 1e-3f);
      EXPECT_NEAR(cast(rule, amax).scale * 448.0f / amax, 1.0f, 1e-6f);
    }
  }
}

TEST(UnitCastTest, FloorsDifferByProfile) {
  EXPECT_EQ(cast(config::kDeepGemmRule, 0.0f).scale, 1e-4f / 448.0f);
  EXPECT_EQ(cast(config::kVllmRule, 0.0f).scale, 1e-10f / 448.0f);
  EXPECT_EQ(cast(config::kTransformerEngineRule, 0.0f).scale, 1.0f);
  EXPECT_EQ(cast(config::kTorchAoRule, 0.0f).scale, 1.0f / static_cast<float>(448.0 / 1e-12));
  EXPECT_EQ(cast(config::kDeepSeekRule, 0.0f).scale, 0.0f);
  EXPECT_TRUE(std::isnan(cast(config::kDeepSeekRule, 0.0f).apply(0.0f)));
  EXPECT_EQ(cast(config::kCompressedTensorsRule, 0.0f).scale,
            std::numeric_limits<float>::epsilon());
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
  EXPECT_EQ(cast(config::kTransformerEngineRule, kInfinity).scale, 1.0f);
  EXPECT_EQ(cast(config::kTransformerEngineRule, kNan).scale, 1.0f);
  // The factor 448 / amax overflows: the largest finite number stands in.
  EXPECT_EQ(cast(config::kTransformerEngineRule, 1e-38f).operand,
            std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace octofold::cpu
