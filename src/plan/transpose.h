// From a transpose of FP8 codes to its kernel. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>

#include "kernels/cast/config/transpose.h"
#include "plan/fields.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

struct TransposeProblem {
  std::int64_t matrices = 1;
  std::int64_t rows = 0;  ///< of one matrix that is read
  std::int64_t cols = 0;
  /// True if addresses and row strides are multiples of TransposeConfig::kVector.
  bool x_is_aligned = true;
  bool out_is_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("matrices", matrices);
    field("rows", rows);
    field("cols", cols);
    field("x_is_aligned", x_is_aligned);
    field("out_is_aligned", out_is_aligned);
  }
  friend bool operator==(const TransposeProblem&, const TransposeProblem&) = default;
};

using TransposePlan = Plan<config::TransposeConfig>;

/// One kernel, or none where there is nothing to do. Throws as plan_cast does.
TransposePlan plan_transpose(const TransposeProblem& problem, const Gpu& gpu);

}  // namespace octofold::plan
