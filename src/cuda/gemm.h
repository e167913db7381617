// GEMM on a GPU.
#pragma once

#include "octofold/gemm.h"

#include "cuda/device.h"
#include "plan/gemm.h"

namespace octofold::cuda {

/// What of checked arguments decides which kernel computes them: all but addresses.
plan::GemmProblem problem_of(const GemmArguments& arguments);

/// octofold::gemm() on checked arguments that lie on `device`. Queues one kernel; the first call of
/// a problem also plans it and loads its kernel. Throws Error where the GPU has no kernel for it.
void gemm(Device& device, const GemmArguments& arguments, Stream stream);

}  // namespace octofold::cuda
