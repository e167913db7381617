// From a dot product to the kernels that carry it out. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>

#include "kernels/dot/config/dot.h"
#include "plan/fields.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

struct DotProblem {
  std::int64_t size = 0;
  DType a = DType::kE4M3;
  DType b = DType::kE4M3;
  bool a_blocks = false;  ///< whether 128 elements share a scale
  bool b_blocks = false;
  /// True if both vectors begin at multiples of what is loaded at a time.
  bool is_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("size", size);
    field("a", a);
    field("b", b);
    field("a_blocks", a_blocks);
    field("b_blocks", b_blocks);
    field("is_aligned", is_aligned);
  }
  friend bool operator==(const DotProblem&, const DotProblem&) = default;
};

using DotPlan = Plan<config::DotConfig>;

/// The sums of parts, and where there are several, their sum. Throws Error(kUnsupported) for a GPU
/// without kernels.
DotPlan plan_dot(const DotProblem& problem, const Gpu& gpu);

}  // namespace octofold::plan
