// The kernels that products choose among, by name: for tests and for tuning.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "octofold/dynamic_gemm.h"
#include "octofold/export.h"
#include "octofold/gated_gemm.h"
#include "octofold/gemm.h"
#include "octofold/grouped_gemm.h"

namespace octofold {

/// Names of the configurations that can compute this problem on Hopper. `operands_fit_tma`: whether
/// addresses and row strides of A and B are multiples of 16 bytes; `output_fits_tma`: those of out,
/// and its rows' lengths; `c_fits_tma`: those of a C of out's type. The sizes do not matter.
/// Example: "64x16.swapped.w1.c1x1x2.b3" computes tiles of 64 rows of B and 16 of A by 1 math
/// warpgroup, in clusters of two blocks that share a tile, each with half of K, and three blocks to
/// a multiprocessor; "192x128.w3.c1x2x1.b1.ordered" tiles of 192 rows of A and 128 of B, in
/// clusters of two neighbouring ones, the warpgroups in order. With ".onto_c" TMA brings C to where
/// the tile leaves from; without, C is added in memory where it is out, or read by threads.
/// Throws Error(kInvalidArgument) for a form that gemm() would refuse.
OCTOFOLD_API std::vector<std::string> gemm_candidates(const GemmProblem& problem,
                                                      bool operands_fit_tma = true,
                                                      bool output_fits_tma = true,
                                                      bool c_fits_tma = true);

/// gemm() on a GPU by the configuration of this name. It is planned anew at each call: to be timed
/// in a CUDA graph. Throws as gemm() does; Error(kInvalidArgument) lists the candidates where there
/// is none of this name, and refuses tensors on the CPU.
OCTOFOLD_API void gemm(const GemmArguments& arguments, Stream stream, std::string_view candidate);

/// The same of gated_gemm(), whatever the arguments. Columns are H's: in
/// "128x128.w2.c2x1x1.b1.early" a tile has 128 of it, 128 gates and as many ups.
OCTOFOLD_API std::vector<std::string> gated_gemm_candidates();
OCTOFOLD_API void gated_gemm(const GatedGemmArguments& arguments, Stream stream,
                             std::string_view candidate);

/// The same of dynamic_gemm(), whatever the arguments. gemm() has candidates of these names too,
/// which sum in the same order.
OCTOFOLD_API std::vector<std::string> dynamic_gemm_candidates();
OCTOFOLD_API void dynamic_gemm(const DynamicGemmArguments& arguments, Stream stream,
                               std::string_view candidate);

/// The same of products of groups of rows, by whatever numbers of them, or (`groups_depth`) of K.
/// grouped_gated_gemm() has the candidates of gated_gemm().
OCTOFOLD_API std::vector<std::string> grouped_gemm_candidates(const GemmForm& form,
                                                              bool groups_depth = false);
OCTOFOLD_API void grouped_gemm(const GroupedGemmArguments& arguments, Stream stream,
                               std::string_view candidate);
OCTOFOLD_API void masked_gemm(const MaskedGemmArguments& arguments, Stream stream,
                              std::string_view candidate);
OCTOFOLD_API void grouped_gemm_k(const GroupedGemmKArguments& arguments, Stream stream,
                                 std::string_view candidate);
OCTOFOLD_API void grouped_gated_gemm(const GroupedGatedGemmArguments& arguments, Stream stream,
                                     std::string_view candidate);

}  // namespace octofold
