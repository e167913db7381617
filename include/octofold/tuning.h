// The kernels that gemm() chooses among, by name: for tests and for tuning.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "octofold/export.h"
#include "octofold/gemm.h"

namespace octofold {

/// Names of the configurations that can compute this problem on Hopper. `operands_fit_tma`: whether
/// addresses and row strides of A and B are multiples of 16 bytes; `output_fits_tma`: those of out,
/// and its rows' lengths. The sizes do not matter.
/// Example: "256x128.w2.c1x2.early" computes tiles 256×128 by 2 math warpgroups, in clusters of 1×2
/// blocks, waiting for operands early.
/// Throws Error(kInvalidArgument) for a form that gemm() would refuse.
OCTOFOLD_API std::vector<std::string> gemm_candidates(const GemmProblem& problem,
                                                      bool operands_fit_tma = true,
                                                      bool output_fits_tma = true);

/// gemm() on a GPU by the configuration of this name. It is planned anew at each call: to be timed
/// in a CUDA graph. Throws as gemm() does; Error(kInvalidArgument) lists the candidates where there
/// is none of this name, and refuses tensors on the CPU.
OCTOFOLD_API void gemm(const GemmArguments& arguments, Stream stream, std::string_view candidate);

}  // namespace octofold
