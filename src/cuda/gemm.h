// GEMM on a GPU.
#pragma once

#include "octofold/gemm.h"

#include "cuda/device.h"

namespace octofold::cuda {

/// octofold::gemm() on checked arguments that lie on `device`. Queues one kernel; the first call of
/// a problem also plans it and loads its kernel. Throws Error where the GPU has no kernel for it.
void gemm(Device& device, const GemmArguments& arguments, Stream stream);

}  // namespace octofold::cuda
