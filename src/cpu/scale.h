// From the largest magnitude of a unit to its scale: what a CastRule says, carried out.
#pragma once

#include "kernels/config/cast_rule.h"
#include "kernels/config/fp8_format.h"

namespace octofold::cpu {

/// The cast of one unit. `scale` takes codes back to values.
struct UnitCast {
  config::CastForm form;
  float scale;
  float operand;  // what values are multiplied with (kDivide: divided by) before rounding

  /// The value whose nearest FP8 number is the code.
  float apply(float x) const {
    return form == config::CastForm::kDivide ? x / operand : x * operand;
  }
};

/// `amax` is the largest magnitude of the unit, NaN if any element is.
UnitCast unit_cast(const config::CastRule& rule, const config::Fp8Format& format, bool power_of_two,
                   float amax);

}  // namespace octofold::cpu
