// Products whose weights alone are FP8 on the CPU.
#pragma once

#include "octofold/gemm_weight_only.h"

namespace octofold::cpu {

/// octofold::gemm_weight_only on checked arguments, all matrices. Products with 128 elements are
/// summed in FP32; their sums too, but in FP64 where x is float32 or FP8.
void gemm_weight_only(const GemmWeightOnlyArguments& arguments);

/// octofold::gemm_weight_only_gradient likewise. Weights are rounded to FP32, if at all.
void gemm_weight_only_gradient(const GemmWeightOnlyGradientArguments& arguments);

}  // namespace octofold::cpu
