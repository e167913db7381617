// Rotary embeddings on a GPU.
#pragma once

#include "octofold/rotary.h"

#include "cuda/device.h"

namespace octofold::cuda {

/// octofold::rotary() on checked arguments on `device`: x of rank 4, cos and sin of rank 3.
void rotary(Device& device, const RotaryArguments& arguments, const MutableTensorView& y,
            Stream stream);

}  // namespace octofold::cuda
