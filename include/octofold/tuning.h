// The names of the kernels among which products choose, and tables of the fastest, for tests and
// tuning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "octofold/export.h"
#include "octofold/info.h"
#include "octofold/product_problem.h"
#include "octofold/vocabulary.h"

namespace octofold {

/// The GPU for which kernels are planned. There need be none at hand.
struct TargetGpu {
  /// The architecture that kernels are compiled for: "sm_90a", "sm_89", "sm_120" or "sm_121".
  std::string architecture = "sm_90a";
  std::int32_t multiprocessors = 132;
};

/// The tensors that the 16-byte copies of a GPU can address: A and B, if their addresses and row
/// strides are multiples of 16 bytes; out, if its rows' lengths are too; a C of out's type.
struct TensorAlignment {
  bool operands = true;
  bool out = true;
  bool c = true;
};

/// The names of the configurations that can compute this problem, for `candidate` of the arguments.
/// The sizes do not matter.
///
/// Example, of Hopper: "64x16.swapped.w1.c1x1x2.b3" computes tiles of 64 rows of B and 16 of A by 1
/// math warpgroup, in clusters of two blocks that share a tile, each with half of K, and three
/// blocks to a multiprocessor; "192x128.w3.c1x2x1.b1.ordered" tiles of 192 rows of A and 128 of B,
/// in clusters of two neighbouring ones, the warpgroups in order. With ".onto_c" TMA brings C to
/// where the tile leaves from; without, C is added in memory where it is out, or read by threads.
/// Columns of a gated product are H's: in "128x128.w2.c2x1x1.b1.early" a tile has 128 of it, 128
/// gates and as many ups.
///
/// Throws Error: kInvalidArgument for a form that the operation would refuse; kUnsupported for an
/// architecture without kernels for it.
OCTOFOLD_API std::vector<std::string> product_candidates(const ProductProblem& problem,
                                                         const TensorAlignment& alignment = {},
                                                         const TargetGpu& gpu = {});

/// The candidate that is used for contiguous tensors if no table has the product. Throws as the
/// product does for forms and sizes.
OCTOFOLD_API std::string planned_candidate(const ProductProblem& problem,
                                           const TargetGpu& gpu = {});

/// The name of a product of contiguous tensors in tables: "gemm: m 64, n 7168, k 2048, a e4m3
/// 1x128, …".
OCTOFOLD_API std::string tuning_key(const ProductProblem& problem);

/// A call of gemm_weight_only(), grouped_gemm_weight_only() or one of their gradients, where m, n
/// and k are the rows and columns of the result and the depth that is summed. Of kRows m is the
/// rows of all groups, of kMasked those that each has room for.
struct WeightOnlyProblem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  Operand w{.scales = Granularity::kBlock128x128};
  DType x = DType::kBFloat16;  ///< float16 or bfloat16
  DType out = DType::kBFloat16;
  bool gradient = false;
  Grouping grouping = Grouping::kNone;  ///< kNone, kRows or kMasked
  std::int64_t groups = 1;
  std::optional<std::int64_t> expected_rows{};  ///< of kMasked, as in ProductProblem
  bool gathered = false;                        ///< rows of kRows are read where they lie
  bool batch_invariant = false;
};

/// The same as for a ProductProblem, with contiguous tensors and the workspace that the product
/// asks for. Sizes do matter here. Example: "64x16.w2x1x4.s3.k2" has tiles of 64 rows of W and 16
/// of x by two warps along W's rows and four along the depth, three stages, and two blocks that
/// share the depth.
OCTOFOLD_API std::vector<std::string> product_candidates(const WeightOnlyProblem& problem,
                                                         const TargetGpu& gpu = {});
OCTOFOLD_API std::string planned_candidate(const WeightOnlyProblem& problem,
                                           const TargetGpu& gpu = {});
OCTOFOLD_API std::string tuning_key(const WeightOnlyProblem& problem);

/// A table of measured choices, which products follow on a GPU before their own reckoning.
/// docs/tuning.md has its format; `octofold tune` writes it.
struct TuningTable {
  /// OCTOFOLD_TUNING, else <GPU's name>.json in the folder `tuning` of kernel_cache_folder(). Empty
  /// where there is no such place, or OCTOFOLD_TUNING is 0: then nothing is followed.
  std::filesystem::path file{};
  /// Why it is not followed: another GPU's, another version's, damaged. Empty where it is, or there
  /// is none.
  std::string fault{};
  std::int64_t products = 0;
  /// The products in the table for this GPU that comes with the library: followed where the other
  /// one has nothing.
  std::int64_t shipped = 0;
};

/// The table of a GPU at hand, as on disk now: the process reads it once, at its first product.
OCTOFOLD_API TuningTable tuning_table(const GpuInfo& gpu);

}  // namespace octofold
