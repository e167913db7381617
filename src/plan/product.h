// The problem that a product is to the planners, which is all that a plan depends on, and its plan.
// Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "octofold/gemm_form.h"

#include "core/product.h"
#include "kernels/mma/config/config.h"
#include "kernels/sm90/config/checks.h"
#include "plan/fields.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

/// A product without its tensors.
struct SizedForm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  GemmForm form{};

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("m", m);
    field("n", n);
    field("k", k);
    field("form", form);
  }
  friend bool operator==(const SizedForm&, const SizedForm&) = default;
};

/// Alignment enters as yes or no, so that problems that differ in addresses only share a plan.
struct GemmProblem {
  SizedForm product{};
  /// If it exists, B has 2·N rows, the gates' and the ups', and `out` is the type of H's codes.
  config::GatedOutput gated{};
  /// If it exists, A is of another type, and `a` that of the codes that it is cast to.
  config::DynamicInput dynamic{};
  /// True if the bits of a row may not depend on what decides how a sum is divided.
  bool batch_invariant = false;
  /// True if TMA can address A and B, and D (plan/tma.h), and if A and B consist of words. An A
  /// that is cast does not count.
  bool operands_fit_tma = true;
  bool operands_fit_words = true;
  bool output_fits_tma = true;
  /// True if C is D itself, in FP32: then TMA may add to it. And true if it is of D's type, where
  /// TMA can address it: then it may, in FP32, come to where D leaves from.
  bool c_is_out = false;
  bool c_fits_tma = true;
  /// With groups: n is one group's, and so is m where each has room for as many rows, or K is in
  /// groups; k is then of all groups. What a group is expected to have of what is in groups: rows,
  /// or columns of K. Where A's rows arrive in shards, the plan does not ask for their number.
  config::Work work = config::Work::kDense;
  std::int64_t groups = 1;
  std::int64_t expected = 0;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("product", product);
    field("gated", gated);
    field("dynamic", dynamic);
    if (batch_invariant) field("batch_invariant", batch_invariant);
    field("operands_fit_tma", operands_fit_tma);
    field("operands_fit_words", operands_fit_words);
    field("output_fits_tma", output_fits_tma);
    field("c_is_out", c_is_out);
    if (product.form.c != Addend::kNone) field("c_fits_tma", c_fits_tma);
    if (work == config::Work::kDense) return;
    field("work", work);
    if (!config::has_groups(work)) return;
    field("groups", groups);
    field("expected", expected);
  }
  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

/// The public function that has such products: "gemm", "grouped_gemm" or "gated_gemm".
std::string_view operation_of(const GemmProblem& problem);

/// Why TMA cannot address A and B of a checked product, and write D, for messages (plan/tma.h);
/// null: it can. An A that is cast does not count.
struct TmaObstacles {
  const char *a, *b, *out;
};
TmaObstacles tma_obstacles(const core::Product& product);

/// The properties of a checked product that decide which kernel computes it: all but addresses.
GemmProblem problem_of(const core::Product& product);

/// The same problem of tensors as operations allocate them: rows of codes begin at multiples of 16
/// bytes, other tensors are contiguous.
GemmProblem as_allocated(GemmProblem problem);
/// The same problem with no gaps between rows of codes.
GemmProblem contiguous(GemmProblem problem);

/// Sizes of the product, or of those of one group, as far as the host can expect them: a group of
/// rows that is expected to be empty counts as one of one row.
struct GroupSizes {
  std::int64_t m, n, k;
};
GroupSizes expected_group(const GemmProblem& problem);

/// Tiles, of so many rows of A by rows of B, that there can be, whatever the groups' sizes are:
/// groups of rows may each leave one tile of rows unfilled.
std::int64_t most_tiles(const GemmProblem& problem, std::int64_t rows_of_a, std::int64_t rows_of_b);

/// The sizes that an architecture's kernels can count.
struct SizeLimits {
  std::int64_t largest;  ///< of M, N, K, groups, and the rows of all groups together
  std::int64_t most_tiles;
  int rows_of_a, rows_of_b;  ///< of the smallest tile
};
/// Throws Error(kUnsupported), which names the sizes, where a problem goes beyond.
void require_sizes(const GemmProblem& problem, const SizeLimits& limits);

/// The configuration of the kernel of any of the architectures.
using ProductConfig = std::variant<config::Sm90GemmConfig, config::MmaGemmConfig>;
using ProductPlan = Plan<ProductConfig>;  ///< one kernel
using ProductPlanner = TunablePlanner<GemmProblem, ProductConfig>;

/// The plan that is reckoned to be the fastest, or, where `candidate` names one, that one. Of a
/// gated product the operands have to fit TMA, and its columns are whole tiles; so does the B of an
/// A that is cast, and the operands whose K is in groups.
///
/// Throws Error: kUnsupported for a GPU without kernels, and for sizes or numbers of tiles near
/// 2^31 and more; kInvalidArgument, which lists the candidates, where there is none of this name.
ProductPlan plan_product(const GemmProblem& problem, const Gpu& gpu,
                         std::string_view candidate = {});

/// All configurations, each once: for tests, tuning, and filling the cache. Throws
/// Error(kUnsupported) for a GPU without kernels.
ProductPlanner::Candidates product_candidates(const GemmProblem& problem, const Gpu& gpu);

/// The name of the configuration that plan_product() chooses.
std::string planned_candidate(const GemmProblem& problem, const Gpu& gpu);

/// The names of those that are reckoned to be the fastest, the best first: at most so many.
std::vector<std::string> best_candidates(const GemmProblem& problem, const Gpu& gpu,
                                         std::size_t most);

}  // namespace octofold::plan
