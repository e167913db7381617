// Attention on a GPU.
#pragma once

#include "octofold/attention.h"

#include "cuda/device.h"

namespace octofold::cuda {

/// octofold::attention on checked arguments on `device`; `scale` is not 0. Throws
/// Error(kUnsupported) for more rows or keys than kernels count.
void attention(Device& device, const AttentionArguments& arguments, Stream stream);

}  // namespace octofold::cuda
