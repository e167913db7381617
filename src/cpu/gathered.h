// Casts of gathered rows on the CPU, on checked arguments.
#pragma once

#include "octofold/gathered.h"

#include "kernels/cast/config/cast.h"

namespace octofold::cpu {

/// octofold::quantize_gathered. No source is less than -1 or beyond the places of x.
void quantize_gathered(const GatheredRows& rows, const CastTargets& out,
                       const config::CastFormat& format, ScaleSource scales);

}  // namespace octofold::cpu
