// The kernels that come compiled with the library: what inference in FP8 asks for first. Pure.
#pragma once

#include <vector>

#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

/// The GPUs that they are compiled for: H100 and H200.
inline constexpr Gpu kPrecompiledFor[] = {kHopper};

/// Each kernel once: those that planners choose for the weights of common models, at
/// batches of 1 to 16384 rows in BF16, of
/// - gemm of e4m3: 1x128 · 128x128 and channel · channel, with a bias and without, tensor · tensor;
/// - grouped_gemm of groups of rows, masked ones too, and gated_gemm of groups, of e4m3, 1x128 ·
///   128x128;
/// - casts to e4m3 by the rules of "deepgemm" and "torchao": of all granularities, of SwiGLU to
///   1x128 and channel, of RMSNorm to 1x128; the transpose of codes;
/// - the choice of experts, the order of their rows, and the sum of what they give.
std::vector<KernelPlan> precompiled_kernels(const Gpu& gpu);

}  // namespace octofold::plan
