// Products whose weights alone are FP8 on a GPU.
#pragma once

#include "core/product.h"
#include "cuda/device.h"

namespace octofold::cuda {

/// On checked arguments on `device`, with something to write.
void multiply(Device& device, const core::WeightOnlyProduct& product, Stream stream);

}  // namespace octofold::cuda
