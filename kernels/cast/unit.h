// The scale of a unit: from its largest magnitude to its place in the scale tensor.
#pragma once

#include "kernels/cast/config/cast.h"
#include "kernels/numeric/given_caster.h"
#include "kernels/numeric/unit_cast.h"
#include "kernels/ptx/global_memory.h"

namespace octofold::cast {

using config::CastFormat;
using config::CastPhase;

template <CastFormat kFormat>
using CasterOf = numeric::Caster<kFormat.rule.arithmetic, kFormat.in>;

template <CastFormat kFormat>
__device__ inline numeric::UnitCast unit_cast(float amax) {
  return numeric::unit_cast<kFormat.rule, kFormat.in, kFormat.out, kFormat.power_of_two>(amax);
}

// Writes the scale for `amax`, and returns the operand of the unit's cast. `scale` is null where
// someone else writes it, or the unit does not exist.
template <CastFormat kFormat>
__device__ inline float write_scale(float* scale, float amax) {
  const numeric::UnitCast of_unit = unit_cast<kFormat>(amax);
  if (scale != nullptr) *scale = of_unit.scale;
  return of_unit.operand;
}

// Raises what is gathered at `scale`, in no order; as in write_scale().
__device__ inline void raise_amax(float* scale, float amax) {
  if (scale != nullptr)
    ptx::raise_global(reinterpret_cast<unsigned*>(scale), __float_as_uint(amax));
}

// The type that casts the values of a unit in this phase.
template <CastFormat kFormat, CastPhase kPhase, bool kAmaxGiven>
struct PhaseCaster {
  using Type = CasterOf<kFormat>;
};
template <CastFormat kFormat>
struct PhaseCaster<kFormat, CastPhase::kEncodeGiven, false> {
  using Type = numeric::GivenCaster<kFormat.rule.arithmetic, kFormat.in>;
};
template <CastFormat kFormat, CastPhase kPhase>
struct PhaseCaster<kFormat, kPhase, true> {
  using Type = typename numeric::FarCaster<kFormat.rule.arithmetic, kFormat.in>::Type;
};

// Made from what the scale tensor holds: the largest magnitude, or the scale.
template <CastFormat kFormat, CastPhase kPhase, bool kAmaxGiven>
__device__ inline auto held_caster(float held) {
  using Caster = typename PhaseCaster<kFormat, kPhase, kAmaxGiven>::Type;
  if constexpr (kPhase == CastPhase::kEncodeGiven) return Caster::make(held);
  return Caster::make(unit_cast<kFormat>(held).operand);
}

}  // namespace octofold::cast
