// Casts on the CPU: the values of a source are made, and then cast.
#pragma once

#include "octofold/cast_sources.h"
#include "octofold/cast_targets.h"

#include "kernels/cast/config/cast.h"

namespace octofold::cpu {

/// octofold::cast on checked matrices.
void cast(const CastSource& source, const CastTargets& targets, const config::CastFormat& format);

}  // namespace octofold::cpu
