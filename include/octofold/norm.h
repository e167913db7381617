// RMSNorm and LayerNorm in the numbers that they are of.
#pragma once

#include "octofold/cast_sources.h"
#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// Computes y of a norm, rounded once to the type of x: what cast() of the same source casts. The
/// statistics and, with a residual, the sum are written as there.
///
/// y: x's shape and dtype, with contiguous columns, apart from all that is read.
/// On a GPU one kernel does everything, and reads rows of up to 32768 columns of 16 bits once.
/// Errors: as those of cast().
OCTOFOLD_API void norm(const Normed& source, const MutableTensorView& y, Stream stream = {});

}  // namespace octofold
