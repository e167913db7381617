// Products by kernels/sm90.
#pragma once

#include "core/product.h"
#include "cuda/device.h"
#include "cuda/gemm_params.h"
#include "kernels/sm90/config/checks.h"

namespace octofold::cuda {

/// The parameters for the kernel of this configuration.
config::Sm90GemmParams params_of(const Device& device, const core::Product& product,
                                 const config::Sm90GemmConfig& config);

SlowPaths slow_paths(const config::Sm90GemmConfig& config);

}  // namespace octofold::cuda
