// Products of an FP8 matrix and a few vectors on a GPU.
#pragma once

#include "octofold/gemv.h"

#include "cuda/device.h"

namespace octofold::cuda {

/// octofold::gemv on checked arguments on `device`, all matrices, with something to write.
void gemv(Device& device, const GemvArguments& arguments, Stream stream);

}  // namespace octofold::cuda
