// Norms on a GPU.
#pragma once

#include "octofold/norms.h"

#include "cuda/device.h"
#include "kernels/cast/config/cast.h"

namespace octofold::cuda {

/// octofold::quantize_norm() on checked matrices that lie on `device`: one kernel, or one before
/// those of the cast.
void quantize_norm(Device& device, const NormArguments& arguments, const CastTargets& out,
                   const config::CastFormat& format, ScaleSource scales, Stream stream);

/// octofold::norm_backward() likewise.
void norm_backward(Device& device, const NormBackwardArguments& arguments,
                   const NormGradients& gradients, Stream stream);

}  // namespace octofold::cuda
