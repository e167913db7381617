#include "cpu/scale.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace octofold::cpu {
namespace {

// max() that hands NaN on.
template <typename T>
T raise_to(T value, T floor) {
  return value < floor ? floor : value;
}

float log2_rounded(float value) {
  return static_cast<float>(std::log2(static_cast<double>(value)));
}

float round_to_power_of_two(config::PowerOfTwoRounding rounding, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  switch (rounding) {
    case config::PowerOfTwoRounding::kCeil: {
      const std::uint32_t exponent = ((bits >> 23) & 0xFFu) + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
      return std::bit_cast<float>(std::clamp(exponent, 1u, 254u) << 23);
    }
    case config::PowerOfTwoRounding::kCeilLog2: return std::exp2(std::ceil(log2_rounded(value)));
    case config::PowerOfTwoRounding::kTruncate: return std::bit_cast<float>(bits & 0xFF800000u);
    case config::PowerOfTwoRounding::kFloorLog2: return std::exp2(std::floor(log2_rounded(value)));
  }
  return value;
}

// Values are multiplied by the factor, the inverse of the scale.
UnitCast factor_cast(const config::CastRule& rule, const config::Fp8Format& format,
                     bool power_of_two, double amax) {
  auto factor = static_cast<float>(static_cast<double>(format.largest_finite) / amax);
  if (rule.repair_factor) {
    if (amax == 0 || std::isinf(amax) || std::isnan(amax)) factor = 1.0f;
    factor = std::min(factor, std::numeric_limits<float>::max());
  }
  if (power_of_two) factor = round_to_power_of_two(rule.rounding, factor);
  return {rule.form, 1.0f / factor, factor};
}

}  // namespace

UnitCast unit_cast(const config::CastRule& rule, const config::Fp8Format& format, bool power_of_two,
                   float amax) {
  // A quotient of two FP32 numbers that is formed in FP64 and rounded to FP32 equals the FP32
  // quotient (53 ≥ 2·24 + 2 bits), so one path serves rules of either precision.
  const double raised = raise_to(static_cast<double>(amax), rule.amax_floor);
  if (rule.form == config::CastForm::kFactor) {
    return factor_cast(rule, format, power_of_two, raised);
  }
  auto scale = static_cast<float>(raised / static_cast<double>(format.largest_finite));
  scale = raise_to(scale, rule.scale_floor);
  if (power_of_two) {
    scale = round_to_power_of_two(rule.rounding, raise_to(scale, rule.power_of_two_floor));
  }
  const bool divide = rule.form == config::CastForm::kDivide;
  return {rule.form, scale, divide ? scale : 1.0f / scale};
}

}  // namespace octofold::cpu
