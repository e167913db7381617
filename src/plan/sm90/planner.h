// Products on Hopper, by kernels/sm90.
#pragma once

#include "plan/product_planner.h"

namespace octofold::plan::sm90 {

const ProductPlanner& planner();

/// The header and the name of the kernel.
inline constexpr const char* kHeader = "kernels/sm90/gemm.h";
inline constexpr const char* kKernel = "gemm_kernel";

}  // namespace octofold::plan::sm90
