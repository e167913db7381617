// From the largest magnitude of a unit to its scale: what a CastRule says, carried out.
#pragma once

#include <span>

#include "octofold/types.h"

#include "kernels/shared/cast_rule.h"

namespace octofold::cpu {

/// The cast of one unit. `scale` takes codes back to values.
struct UnitCast {
  config::CastArithmetic arithmetic;
  DType in;
  float scale;
  float operand;  // what values are multiplied with, or divided by, before rounding

  /// Turns values of x into those whose nearest FP8 numbers are the codes.
  void apply(std::span<float> values) const;
};

/// `amax` is the largest magnitude of the unit, of `in` elements; NaN if any of them is.
UnitCast unit_cast(const config::CastRule& rule, DType in, const config::Fp8Format& format,
                   bool power_of_two, float amax);

/// The cast with a scale that was given: taken as it is, applied as the rule applies its own.
UnitCast given_cast(const config::CastRule& rule, DType in, float scale);

}  // namespace octofold::cpu
