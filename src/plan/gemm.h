// From a GEMM problem to the kernel that computes it. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/gemm.h"

#include "core/groups.h"
#include "kernels/sm90/config/gemm.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

/// All that a plan depends on. Alignment enters as yes or no, so that problems that differ in
/// addresses only share a plan.
struct GemmProblem {
  octofold::GemmProblem product{};
  /// Where it exists, B has 2·N rows, the gates' and the ups', and `out` is the type of H's codes.
  config::GatedOutput gated{};
  /// Where it exists, A is of another type, and `a` that of the codes that it is cast to.
  config::DynamicInput dynamic{};
  /// Whether TMA can address A and B, and D (plan/tma.h), and whether A and B consist of words. An
  /// A that is cast does not count.
  bool operands_fit_tma = true;
  bool operands_fit_words = true;
  bool output_fits_tma = true;
  /// Whether C is D itself, in FP32: then TMA may add to it. And whether it is of D's type, where
  /// TMA can address it: then it may, in FP32, come to where D leaves from.
  bool c_is_out = false;
  bool c_fits_tma = true;
  /// With groups: n is one group's, and so is m where each has room for as many rows, or K is in
  /// groups; k is then of all groups. What a group is expected to have of what is in groups: rows,
  /// or columns of K.
  config::Work work = config::Work::kDense;
  std::int64_t groups = 1;
  std::int64_t expected = 0;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("product", product);
    field("gated", gated);
    field("dynamic", dynamic);
    field("operands_fit_tma", operands_fit_tma);
    field("operands_fit_words", operands_fit_words);
    field("output_fits_tma", output_fits_tma);
    field("c_is_out", c_is_out);
    if (product.form.c != Addend::kNone) field("c_fits_tma", c_fits_tma);
    if (work == config::Work::kDense) return;
    field("work", work);
    field("groups", groups);
    field("expected", expected);
  }
  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

/// "gemm", "grouped_gated_gemm" and so on.
std::string_view operation_of(const GemmProblem& problem);

/// What of checked arguments decides which kernel computes them: all but addresses.
GemmProblem problem_of(const GemmArguments& arguments);
GemmProblem problem_of(const core::GroupedProduct& grouped, config::Work work);

/// The problem of contiguous tensors at addresses that are multiples of 16 bytes.
GemmProblem contiguous(const octofold::GemmProblem& product);

/// One kernel.
using GemmPlan = Plan<config::Sm90GemmConfig>;

/// For Hopper; dense products of other GPUs are plan/mma_gemm.h's. Throws Error(kUnsupported) for
/// sizes or numbers of tiles near 2^31 and more, and for a GPU without kernels. What is gated has
/// to fit TMA, with whole tiles of columns; the B of an A that is cast has to fit it too.
GemmPlan plan_gemm(const GemmProblem& problem, const Gpu& gpu);

/// The plan with the candidate of this name. Throws Error(kInvalidArgument) that lists the
/// problem's candidates where there is no such one.
GemmPlan plan_gemm(const GemmProblem& problem, const Gpu& gpu, std::string_view candidate);

/// A configuration that plan_gemm can choose for problems that differ from this one in sizes only.
struct GemmCandidate {
  std::string name;  ///< "64x16.swapped.w1.c1x1x2.b3": octofold/tuning.h
  config::Sm90GemmConfig config;
};

/// All of them, each once: for tests, tuning, and filling the cache.
std::vector<GemmCandidate> gemm_candidates(const GemmProblem& problem, const Gpu& gpu);

/// The header and the name of the kernel.
inline constexpr const char* kGemmHeader = "kernels/sm90/gemm.h";
inline constexpr const char* kGemmKernel = "gemm_kernel";

}  // namespace octofold::plan
