// Gathered rows on the CPU, on checked arguments.
#pragma once

#include "octofold/cast_sources.h"

#include "cpu/owned_matrix.h"

namespace octofold::cpu {

/// The rows, and zeros for those that come from nowhere. No place is less than -1 or beyond those
/// of x.
OwnedMatrix gathered(const GatheredRows& rows);

}  // namespace octofold::cpu
