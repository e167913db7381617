// Scaled casts of a matrix in memory on the CPU, on checked matrices.
#pragma once

#include "octofold/cast_targets.h"

#include "kernels/cast/config/cast.h"

namespace octofold::cpu {

/// Casts x [rows, cols], of any strides, to out.data [rows, cols] with the scales that it finds in
/// out.scale (kGiven), or works out and writes there. The granularity is that of `out`.
void cast_matrix(const TensorView& x, const CastTarget& out, const config::CastFormat& format);

/// The same for each target that there is: of x, and of its transpose; and what is wanted of its
/// columns. Offsets begin at 0, ascend, and end within x. Of a stack, for each of its matrices.
void cast_values(const TensorView& x, const CastTargets& out, const config::CastFormat& format);

}  // namespace octofold::cpu
