// FP8 products on a GPU.
#pragma once

#include "core/product.h"
#include "cuda/device.h"

namespace octofold::cuda {

/// octofold::gemm(), grouped_gemm() and gated_gemm() on checked arguments that lie on `device`.
/// Queues one kernel; the first call of a problem also plans it and loads its kernel. A candidate
/// that the product names is planned in each call: for tests and tuning. Throws Error where the GPU
/// has no kernel for it.
void multiply(Device& device, const core::Product& product, Stream stream);

}  // namespace octofold::cuda
