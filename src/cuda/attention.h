// Attention on a GPU.
#pragma once

#include <cstdint>

#include "octofold/attention.h"

#include "cuda/device.h"

namespace octofold::cuda {

/// How many keys a sequence has at most, or of packed ones all have together.
std::int64_t key_count(const AttentionArguments& arguments);

/// octofold::attention on checked arguments on `device`; `scale` is not 0. Throws
/// Error(kUnsupported) for more rows or keys than kernels count.
void attention(Device& device, const AttentionArguments& arguments, Stream stream);

}  // namespace octofold::cuda
