// Products by kernels/mma.
#pragma once

#include "core/product.h"
#include "cuda/device.h"
#include "cuda/gemm_params.h"
#include "kernels/mma/config/config.h"

namespace octofold::cuda {

/// The parameters for the kernel of this configuration.
config::GemmParams params_of(const Device& device, const core::Product& product,
                             const config::MmaGemmConfig& config);

SlowPaths slow_paths(const config::MmaGemmConfig& config);

}  // namespace octofold::cuda
