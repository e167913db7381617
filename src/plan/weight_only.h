// From a product with FP8 weights to the kernel that carries it out. Pure: no CUDA, no memory, no
// state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/product.h"
#include "kernels/weight_only/config/config.h"
#include "kernels/weight_only_sm90/config/config.h"
#include "plan/fields.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

/// out[rows, columns], each the sum of `depth` products; or rows in groups with a W each.
struct WeightOnlyProblem {
  std::int64_t rows = 0;  ///< of all groups; of kMaskedRows those that each has room for
  std::int64_t columns = 0;
  std::int64_t depth = 0;
  DType w = DType::kE4M3;
  DType x = DType::kBFloat16;
  DType out = DType::kBFloat16;
  bool transposed = false;  ///< W is [depth, columns]
  Granularity w_scales = Granularity::kTensor;
  bool x_blocks = false;       ///< whether 128 numbers of an FP8 x share a scale
  bool is_aligned = true;      ///< rows of x and W are whole units of 16 bytes, at multiples of 16
  bool out_is_aligned = true;  ///< rows of out are whole groups of four, at multiples of four
  bool has_workspace = false;  ///< blocks may share the depth
  bool fits_tma = true;        ///< TMA can address x and W
  config::Work work = config::Work::kDense;
  std::int64_t groups = 1;
  std::int64_t expected = 0;     ///< rows of a group of kMaskedRows
  bool gathered = false;         ///< rows of x are read where they lie
  bool batch_invariant = false;  ///< how a row is summed may not depend on how many there are

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("rows", rows);
    field("columns", columns);
    field("depth", depth);
    field("w", w);
    field("x", x);
    field("out", out);
    field("transposed", transposed);
    field("w_scales", w_scales);
    field("x_blocks", x_blocks);
    field("is_aligned", is_aligned);
    field("out_is_aligned", out_is_aligned);
    field("has_workspace", has_workspace);
    field("fits_tma", fits_tma);
    if (batch_invariant) field("batch_invariant", batch_invariant);
    if (!config::has_groups(work)) return;
    field("work", work);
    field("groups", groups);
    field("expected", expected);
    field("gathered", gathered);
  }
  friend bool operator==(const WeightOnlyProblem&, const WeightOnlyProblem&) = default;
};

/// The rows of a checked product that a kernel counts: those of a masked group, else all.
std::int64_t rows_of(const core::WeightOnlyProduct& product);

/// The properties of a checked product that decide which kernel computes it: all but addresses.
WeightOnlyProblem problem_of(const core::WeightOnlyProduct& product);

/// The public function of it.
const char* operation_of(const WeightOnlyProblem& problem);

/// The tiles of so many rows that the problem has: at most, and as rows fall to groups of which
/// some are likelier than others; and how many matrices W have any.
struct RowTiles {
  std::int64_t most;
  double expected;
  double matrices;
};
RowTiles row_tiles(const WeightOnlyProblem& problem, int tile_rows);

/// How many rows a matrix W that has any is expected to be multiplied with.
double expected_rows(const WeightOnlyProblem& problem);

/// The same problem of tensors as operations allocate them: contiguous, at addresses that are
/// multiples of 16 bytes, with the workspace that weight_only_workspace_size() asks for.
WeightOnlyProblem as_allocated(WeightOnlyProblem problem);

/// One way to carry it out, by warps that multiply.
struct WeightOnlyWork {
  config::WeightOnlyConfig config{};
  std::int64_t splits = 1;  ///< of the depth: more than one is config.split

  friend bool operator==(const WeightOnlyWork&, const WeightOnlyWork&) = default;
};

/// The way of any of the architectures.
using WeightOnlyChoice = std::variant<WeightOnlyWork, config::Sm90WeightOnlyConfig>;
using WeightOnlyPlan = Plan<WeightOnlyChoice>;
using WeightOnlyPlanner = TunablePlanner<WeightOnlyProblem, WeightOnlyChoice>;

/// The kernel, with the tile that is reckoned to be the fastest or that `candidate` names, and
/// where blocks share the depth another that adds what they have.
/// Throws Error: kUnsupported for a GPU without kernels for it, or for bfloat16; kInvalidArgument,
/// which lists the candidates, where there is none of this name.
WeightOnlyPlan plan_weight_only(const WeightOnlyProblem& problem, const Gpu& gpu,
                                std::string_view candidate = {});

/// The candidates to choose from: all that are valid and fit into the GPU's shared memory.
WeightOnlyPlanner::Candidates weight_only_candidates(const WeightOnlyProblem& problem,
                                                     const Gpu& gpu);

/// The name of the one that plan_weight_only() chooses.
std::string planned_candidate(const WeightOnlyProblem& problem, const Gpu& gpu);

/// The names of those that are reckoned to be the fastest, the best first: at most so many.
std::vector<std::string> best_candidates(const WeightOnlyProblem& problem, const Gpu& gpu,
                                         std::size_t most);

}  // namespace octofold::plan
