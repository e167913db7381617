// FP8 weights that are multiplied as numbers of a wider type.
#pragma once

#include "octofold/tensor.h"

#include "core/check.h"
#include "ops/inputs.h"

namespace octofold::ops {

/// Of 'w', a matrix on `device`, which joins the inputs.
void check_weights(const core::Arguments& check, const ScaledTensorView& w, Device device,
                   Inputs& inputs);

}  // namespace octofold::ops
