// Norms on a GPU.
#pragma once

#include "octofold/cast_targets.h"
#include "octofold/norm.h"
#include "octofold/norm_gradient.h"

#include "cuda/device.h"
#include "kernels/cast/config/cast.h"

namespace octofold::cuda {

/// Statistics and sum of a checked source, by one kernel. Returns whether that has also written the
/// targets, as it does where it can.
bool normalize(Device& device, const Normed& source, const CastTargets& targets,
               const config::CastFormat& format, Stream stream);

/// octofold::norm() of a checked source, to a checked matrix on `device`.
void norm(Device& device, const Normed& source, const MutableTensorView& y, Stream stream);

/// octofold::norm_gradient() on checked matrices that lie on `device`.
void norm_gradient(Device& device, const NormGradientArguments& arguments,
                   const NormGradients& gradients, Stream stream);

}  // namespace octofold::cuda
