#include "ops/cast_target.h"

#include "core/flatten.h"

namespace octofold::ops {
namespace {

const config::CastRule& rule_of(const core::Arguments& check, const Format& format) {
  for (const config::CastRuleRow& row : config::kCastRules) {
    if (row.rule == format.rule) return row.of(format.granularity);
  }
  check.fail("rule", "a Rule", core::format("{}", static_cast<int>(format.rule)));
}

void require_scales_apart(const core::Arguments& check, const std::string& argument,
                          const TensorView& scale) {
  if (scale.element_count() == 0) return;
  for (int i = 0; i < scale.rank; ++i) {
    if (scale.shape[i] > 1 && scale.strides[i] == 0) {
      check.fail(argument, "scales that do not overlap", core::describe(scale));
    }
  }
}

void check_factors(const core::Arguments& check, const std::string& argument,
                   const CastTarget& target) {
  if (target.scales == ScaleSource::kGiven) {
    check.fail(argument + ".channel_scale",
               "none beside given scales, because two-level scales are computed with the codes",
               "one");
  }
}

// Largest magnitudes, before their shape is looked at.
void check_amax(const core::Arguments& check, const std::string& argument,
                const CastTarget& target) {
  const std::string amax = argument + ".amax";
  if (target.scales == ScaleSource::kGiven) {
    check.fail(amax, "none beside given scales, which are taken as they are", "one");
  }
  check.require_enumerator(argument + ".granularity", target.format.granularity);
  if (target.channel_scale || varies_along_k(target.format.granularity)) {
    check.fail(amax, "none, except for units as long as the matrix: tensor, channel",
               core::format("one beside {} scales", name(target.format.granularity)));
  }
}

}  // namespace

CastTarget checked_target(const core::Arguments& check, const std::string& argument,
                          const CastTarget& target, std::span<const std::int64_t> shape,
                          Device device, std::optional<std::int64_t> matrices) {
  check.require_shape(argument, target.data, shape);
  if (target.amax) check_amax(check, argument, target);
  const CastTarget out = matrices ? core::flatten_stack(check, argument, target, *matrices)
                                  : core::flatten(check, argument, target);
  const std::string scale = argument + ".scale";
  check.require_scaled(argument, out, matrices.value_or(1));
  if (out.amax) {
    check.require_scale(argument + ".amax", {out.data, *out.amax, out.format.granularity},
                        matrices.value_or(1));
  }
  if (out.format.dtype != out.data.dtype) {
    check.fail(argument + ".format.dtype", core::format("{}, as its data", name(out.data.dtype)),
               core::format("{}", name(out.format.dtype)));
  }
  check.require_same_device(argument, out.data, device);
  if (out.channel_scale) check_factors(check, argument, out);
  if (out.scales == ScaleSource::kComputed) require_scales_apart(check, scale, out.scale);
  return out;
}

config::CastFormat format_of(const core::Arguments& check, const Format& format, DType in,
                             ScaleSource scales) {
  check.require_enumerator("overflow", format.overflow);
  const config::CastRule& rule = rule_of(check, format);
  const bool given = scales == ScaleSource::kGiven;
  if (given && format.power_of_two.value_or(false)) {
    check.fail("power_of_two", "unset or false, because given scales are taken as they are",
               "true");
  }
  return {.in = in,
          .out = format.dtype,
          .granularity = format.granularity,
          .rule = rule,
          .power_of_two = !given && format.power_of_two.value_or(rule.power_of_two_by_default),
          .saturate = format.overflow == Overflow::kSaturate};
}

}  // namespace octofold::ops
