// Norms on the CPU, on checked matrices.
#pragma once

#include "octofold/norm_gradient.h"

namespace octofold::cpu {

/// The norm alone: statistics and sum, and y [rows, K] in x's dtype.
void normalize(const Normed& source, const MutableTensorView& y);

/// octofold::norm_gradient(); the workspace is not looked at.
void norm_gradient(const NormGradientArguments& arguments, const NormGradients& gradients);

}  // namespace octofold::cpu
