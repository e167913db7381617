// Products whose weights alone are FP8 on a GPU.
#pragma once

#include "octofold/gemm_weight_only.h"

#include "cuda/device.h"

namespace octofold::cuda {

/// octofold::gemm_weight_only on checked arguments on `device`, all matrices, with something to
/// write.
void gemm_weight_only(Device& device, const GemmWeightOnlyArguments& arguments, Stream stream);

/// octofold::gemm_weight_only_gradient likewise.
void gemm_weight_only_gradient(Device& device, const GemmWeightOnlyGradientArguments& arguments,
                               Stream stream);

}  // namespace octofold::cuda
