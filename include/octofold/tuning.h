// Products as texts: which are computed, the names of the kernels among which they choose, and
// tables of the fastest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/export.h"
#include "octofold/info.h"

namespace octofold {

// A product without its tensors is a problem, and a problem is a text: "gemm: m 64, n 7168, k 2048,
// a e4m3 1x128, b e4m3 128x128, out bfloat16". What is not said of operands and `out` is as in this
// one. docs/tuning.md lists all phrases.

/// Notes the products of this process, of all its threads, while it lives. They may be of tensors
/// on any device: a text does not depend on where a product is computed.
class OCTOFOLD_API ProductRecording {
 public:
  ProductRecording();
  ~ProductRecording();
  ProductRecording(const ProductRecording&) = delete;
  ProductRecording& operator=(const ProductRecording&) = delete;

  /// Each once, in the order of their first calls.
  std::vector<std::string> problems() const;

 private:
  std::shared_ptr<std::vector<std::string>> problems_;
};

/// The text with all that may be left out, as tables and recordings have it. Throws
/// Error(kInvalidArgument), which names the phrase, what is allowed and what came.
OCTOFOLD_API std::string complete_problem(std::string_view problem);

/// The GPU for which kernels are planned. There need be none at hand.
struct TargetGpu {
  /// The architecture that kernels are compiled for: "sm_90a", "sm_89", "sm_120" or "sm_121".
  std::string architecture = "sm_90a";
  std::int32_t multiprocessors = 132;
};

/// The names of the kernels that can compute this problem. The sizes matter for weight-only
/// products alone.
///
/// Example, of Hopper: "64x16.swapped.w1.c1x1x2.b3" computes tiles of 64 rows of B and 16 of A by 1
/// math warpgroup, in clusters of two blocks that share a tile, each with half of K, and three
/// blocks to a multiprocessor; "192x128.w3.c1x2x1.b1.ordered" tiles of 192 rows of A and 128 of B,
/// in clusters of two neighbouring ones, the warpgroups in order. With ".onto_c" TMA brings C to
/// where the tile leaves from; without, C is added in memory where it is out, or read by threads.
/// Columns of a gated product are H's: in "128x128.w2.c2x1x1.b1.early" a tile has 128 of it, 128
/// gates and as many ups. Of a weight-only product "64x16.w2x1x4.s3.k2" has tiles of 64 rows of W
/// and 16 of x by two warps along W's rows and four along the depth, three stages, and two blocks
/// that share the depth.
///
/// Throws Error: kInvalidArgument as complete_problem(); kUnsupported for an architecture without
/// kernels for it.
OCTOFOLD_API std::vector<std::string> product_candidates(std::string_view problem,
                                                         const TargetGpu& gpu = {});

/// The candidate that is used if no table has the product. Throws as product_candidates(), and
/// kUnsupported for sizes that kernels cannot count.
OCTOFOLD_API std::string planned_candidate(std::string_view problem, const TargetGpu& gpu = {});

/// From now on the products that this thread computes on GPUs take the candidate of this name; with
/// an empty one the fastest again, by the tables or by prediction. Returns the name before. Such a
/// product is planned anew in each call, and is meant to be timed in a CUDA graph. It throws
/// Error(kInvalidArgument), which lists the candidates, if none has the name, and on the CPU.
OCTOFOLD_API std::string use_candidate(std::string name);

/// A table of measured choices, which products follow on a GPU before their own reckoning.
/// docs/tuning.md has its format; `octofold tune` writes it.
struct TuningTable {
  /// The file that OCTOFOLD_TUNING names, else <GPU's name>.json in the folder `tuning` of
  /// kernel_cache_folder(). Empty where there is no such place, or OCTOFOLD_TUNING is 0: then
  /// nothing is followed.
  std::filesystem::path file{};
  /// Why it is not followed: another GPU's, another version's, damaged. Empty where it is, or there
  /// is none.
  std::string fault{};
  std::int64_t products = 0;
  /// The products in the table for this GPU that comes with the library: followed where the other
  /// one has nothing.
  std::int64_t shipped = 0;
};

/// A product, and the fastest of its measured candidates.
struct MeasuredChoice {
  std::string problem{};
  std::string candidate{};  ///< the fastest, one of product_candidates()
  double microseconds = 0;
  double planned_microseconds = 0;  ///< of planned_candidate(), in the same run
};

/// Puts choices into the table of a GPU at hand, in place of what it has for the same products, for
/// processes that begin later. Of a table that is not followed nothing is kept. The file is
/// replaced as a whole, or left as it was.
///
/// Returns the file. Throws Error: kUnavailable where there is no place for one, kInvalidArgument
/// as complete_problem(), kIo.
OCTOFOLD_API std::filesystem::path write_choices(const GpuInfo& gpu,
                                                 std::span<const MeasuredChoice> choices);

/// The table of a GPU at hand, as on disk now: the process reads it once, at its first product.
OCTOFOLD_API TuningTable tuning_table(const GpuInfo& gpu);

}  // namespace octofold
