// The kernels that products choose among, by name, and tables of the fastest: for tests and tuning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/dynamic_gemm.h"
#include "octofold/export.h"
#include "octofold/gated_gemm.h"
#include "octofold/gemm.h"
#include "octofold/grouped_gemm.h"
#include "octofold/info.h"

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

/// A table of measured choices, which gemm() follows on a GPU before its own reckoning.
/// docs/tuning.md has its format; `octofold tune` writes it.
struct TuningTable {
  /// OCTOFOLD_TUNING, else <GPU's name>.json in the folder `tuning` of kernel_cache_folder(). Empty
  /// where there is no such place, or OCTOFOLD_TUNING is 0: then nothing is followed.
  std::filesystem::path file{};
  /// Why it is not followed: another GPU's, another version's, damaged. Empty where it is, or there
  /// is none.
  std::string fault{};
  std::int64_t products = 0;
  /// Of the table of this GPU that comes with the library: followed where the other one has
  /// nothing.
  std::int64_t shipped = 0;
};

/// That of a GPU at hand, as it is on disk now: the process reads it once, at its first product.
OCTOFOLD_API TuningTable tuning_table(const GpuInfo& gpu);

/// The candidate that gemm() takes of contiguous tensors on a Hopper GPU of so many multiprocessors
/// without a table. Throws as gemm() does for forms and sizes.
OCTOFOLD_API std::string planned_gemm_candidate(const GemmProblem& problem,
                                                std::int32_t multiprocessors = 132);

/// How tables name a product of contiguous tensors: "gemm: m 64, n 7168, k 2048, a e4m3 1x128, …".
OCTOFOLD_API std::string tuning_key(const GemmProblem& problem);

}  // namespace octofold
