// Norms on the CPU, on checked matrices.
#pragma once

#include "octofold/norms.h"

#include "kernels/cast/config/cast.h"

namespace octofold::cpu {

/// The norm alone: statistics and sum, and y [rows, K] in x's dtype.
void normalize(const NormArguments& arguments, const MutableTensorView& y);

/// octofold::quantize_norm().
void quantize_norm(const NormArguments& arguments, const CastTargets& out,
                   const config::CastFormat& format, ScaleSource scales);

/// octofold::norm_backward(); the workspace is not looked at.
void norm_backward(const NormBackwardArguments& arguments, const NormGradients& gradients);

}  // namespace octofold::cpu
