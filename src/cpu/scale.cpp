#include "cpu/scale.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/number_formats.h"

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
    case config::PowerOfTwoRounding::kCeilFinite:
      if (!std::isfinite(value)) return value;
      return round_to_power_of_two(config::PowerOfTwoRounding::kCeil, value);
    case config::PowerOfTwoRounding::kCeilLog2: return std::exp2(std::ceil(log2_rounded(value)));
    case config::PowerOfTwoRounding::kTruncate: return std::bit_cast<float>(bits & 0xFF800000u);
    case config::PowerOfTwoRounding::kFloorLog2: return std::exp2(std::floor(log2_rounded(value)));
  }
  return value;
}

template <typename Format>
float round_to(float value) {
  return Format::decode(Format::encode(value, Overflow::kNan));
}

// A quotient of two FP32 numbers that is formed in FP64 and rounded to FP32 equals the FP32
// quotient (53 ≥ 2·24 + 2 bits), so one path serves rules of either precision.
float divide(double dividend, double divisor) { return static_cast<float>(dividend / divisor); }

// amax / max, where it is not larger for the sake of a power of two.
float scale_of(const config::CastRule& rule, DType in, double amax, double max) {
  float scale =
      rule.scale_by_product ? static_cast<float>(amax) * divide(1, max) : divide(amax, max);
  if (rule.scale_in_type) {
    with_format(in, [&]<typename Format>(Format) { scale = round_to<Format>(scale); });
  }
  if (rule.epsilon_for_zero && scale == 0) scale = config::epsilon_of(in);
  return raise_to(scale, rule.scale_floor);
}

// max / amax, likewise. Values are multiplied by it.
float factor_of(const config::CastRule& rule, DType in, double amax, double max) {
  using enum config::FactorRepair;
  float factor =
      rule.factor_by_product ? static_cast<float>(max) * divide(1, amax) : divide(max, amax);
  if (rule.repair != kNone && !(amax > 0)) factor = 1;
  if (rule.repair == kAll || rule.repair == kAllInType) {
    if (std::isinf(amax)) factor = 1;
    if (std::isinf(factor)) factor = config::largest_of(rule.repair == kAll ? DType::kFloat32 : in);
  }
  return factor;
}

}  // namespace

void UnitCast::apply(std::span<float> values) const {
  switch (arithmetic) {
    case config::CastArithmetic::kReciprocal:
    case config::CastArithmetic::kFactor:
    case config::CastArithmetic::kFactorBeside:
      for (float& value : values) value *= operand;
      return;
    case config::CastArithmetic::kDivide:
      for (float& value : values) value /= operand;
      return;
    case config::CastArithmetic::kDivideInType:
      with_format(in, [&]<typename Format>(Format) {
        for (float& value : values) value = round_to<Format>(value / operand) + 0.0f;
      });
      return;
  }
}

UnitCast unit_cast(const config::CastRule& rule, DType in, const config::Fp8Format& format,
                   bool power_of_two, float amax) {
  const double raised = raise_to(static_cast<double>(amax), rule.amax_floor);
  const bool rounds_scale = power_of_two && config::rounds_scale(rule.rounding);
  const bool from_factor = rule.arithmetic == config::CastArithmetic::kFactor;
  float factor = factor_of(rule, in, raised, format.largest_finite);
  if (power_of_two && !rounds_scale) factor = round_to_power_of_two(rule.rounding, factor);
  float scale = from_factor ? 1.0f / factor : scale_of(rule, in, raised, format.largest_finite);
  if (rounds_scale) {
    scale = round_to_power_of_two(rule.rounding, raise_to(scale, rule.power_of_two_floor));
  }
  const bool inverts = rounds_scale || rule.arithmetic == config::CastArithmetic::kReciprocal;
  if (inverts || config::divides(rule.arithmetic)) return given_cast(rule, in, scale);
  return {rule.arithmetic, in, scale, factor};
}

UnitCast given_cast(const config::CastRule& rule, DType in, float scale) {
  return {rule.arithmetic, in, scale, config::divides(rule.arithmetic) ? scale : 1.0f / scale};
}

}  // namespace octofold::cpu
