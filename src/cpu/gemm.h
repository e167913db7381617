// The reference product on the CPU.
#pragma once

#include <string>

#include "octofold/gemm.h"

namespace octofold::cpu {

/// octofold::gemm on checked arguments.
void gemm(const GemmArguments& arguments);

/// Name, version and chosen kernels of the BLAS inside.
std::string blas_description();

}  // namespace octofold::cpu
