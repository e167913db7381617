// The reference of the product with a cast on the CPU.
#pragma once

#include "octofold/dynamic_gemm.h"

#include "kernels/cast/config/cast.h"

namespace octofold::cpu {

/// octofold::dynamic_gemm on checked matrices; `format`: of the cast.
void dynamic_gemm(const DynamicGemmArguments& arguments, const config::CastFormat& format);

}  // namespace octofold::cpu
