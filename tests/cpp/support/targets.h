// Targets of casts that differ in little.
#pragma once

#include "octofold/cast_targets.h"

namespace octofold::test {

/// The same targets, cast by the rule, power_of_two and overflow of `format`.
inline CastTargets by(const octofold::Format& format, CastTargets targets) {
  for (auto* target : {&targets.rows, &targets.transposed}) {
    if (!*target) continue;
    octofold::Format& own = (*target)->format;
    own = {own.dtype, own.granularity, format.rule, format.power_of_two, format.overflow};
  }
  return targets;
}

/// The same targets, whose scales are given.
inline CastTargets given(CastTargets targets) {
  for (auto* target : {&targets.rows, &targets.transposed}) {
    if (*target) (*target)->scales = ScaleSource::kGiven;
  }
  return targets;
}

}  // namespace octofold::test
