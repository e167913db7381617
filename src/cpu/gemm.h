// The reference product on the CPU.
#pragma once

#include "octofold/gemm.h"

namespace octofold::cpu {

/// octofold::gemm on checked arguments.
void gemm(const GemmArguments& arguments);

}  // namespace octofold::cpu
