// The dot product on a GPU.
#pragma once

#include "octofold/dot.h"

#include "cuda/device.h"

namespace octofold::cuda {

/// octofold::dot on checked arguments on `device`, whose vectors are matrices of one row.
void dot(Device& device, const DotArguments& arguments, Stream stream);

}  // namespace octofold::cuda
