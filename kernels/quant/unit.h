// The scale of a unit, by the thread that owns it: what each step of a cast does about it.
#pragma once

#include "kernels/config/cast_config.h"
#include "kernels/numeric/unit_cast.h"
#include "kernels/ptx/global_memory.h"

namespace octofold::quant {

using config::CastConfig;
using config::CastStep;

// `amax` is the largest magnitude that the caller knows of (kEncode: none); `scale` is the unit's
// place in the scale tensor, null if someone else writes it or the unit does not exist. Returns the
// operand of the unit's cast, where the step has one.
template <CastConfig kConfig>
__device__ inline float own_unit(float amax, float* scale) {
  if constexpr (kConfig.step == CastStep::kAmax) {
    if (scale != nullptr) {
      ptx::raise_global(reinterpret_cast<unsigned*>(scale), __float_as_uint(amax));
    }
    return 0;
  } else {
    const numeric::UnitCast cast =
        numeric::unit_cast<kConfig.rule, kConfig.in, kConfig.out, kConfig.power_of_two>(amax);
    if (kConfig.step != CastStep::kEncode && scale != nullptr) *scale = cast.scale;
    return cast.operand;
  }
}

}  // namespace octofold::quant
