// From a GEMM problem to the kernel of GPUs that multiply FP8 by warps, not by warpgroups: 8.9 and
// 12.x. Pure: no CUDA, no memory, no state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/mma/config/gemm.h"
#include "plan/gemm.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

/// Whether a dense product on this GPU is planned here; plan_gemm() plans all others, and throws
/// where there are no kernels.
bool multiplies_by_warps(const Gpu& gpu);

/// One kernel.
using MmaGemmPlan = Plan<config::MmaGemmConfig>;

/// Of a dense problem, neither gated nor with an input that is cast. Throws Error(kUnsupported) for
/// sizes or numbers of tiles near 2^31 and more.
MmaGemmPlan plan_mma_gemm(const GemmProblem& problem, const Gpu& gpu);

/// The plan with the candidate of this name. Throws Error(kInvalidArgument) that lists the
/// problem's candidates where there is no such one.
MmaGemmPlan plan_mma_gemm(const GemmProblem& problem, const Gpu& gpu, std::string_view candidate);

/// A configuration that plan_mma_gemm can choose for problems that differ in sizes only.
struct MmaGemmCandidate {
  std::string name;  ///< "128x128.w2x4.b1": the tile, warps along its rows and columns, blocks
  config::MmaGemmConfig config;
};
std::vector<MmaGemmCandidate> mma_gemm_candidates(const GemmProblem& problem, const Gpu& gpu);

}  // namespace octofold::plan
