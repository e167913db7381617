// The reference of the gated product on the CPU.
#pragma once

#include "octofold/gated_gemm.h"

#include "kernels/cast/config/cast.h"

namespace octofold::cpu {

/// octofold::gated_gemm on checked matrices; `format`: of the cast.
void gated_gemm(const GatedGemmArguments& arguments, const config::CastFormat& format);

}  // namespace octofold::cpu
