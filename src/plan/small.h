// From a transpose of FP8 codes, a rotary embedding or a dot product to its kernels, among which
// there is little to choose. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>

#include "kernels/cast/config/transpose.h"
#include "kernels/dot/config/dot.h"
#include "kernels/rotary/config/rotary.h"
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

struct RotaryProblem {
  std::int64_t tokens = 0;  ///< of all batches
  std::int64_t heads = 0;
  std::int64_t head_size = 0;
  DType type = DType::kBFloat16;
  /// True if addresses and strides of all tensors are multiples of 16 bytes.
  bool is_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("tokens", tokens);
    field("heads", heads);
    field("head_size", head_size);
    field("type", type);
    field("is_aligned", is_aligned);
  }
  friend bool operator==(const RotaryProblem&, const RotaryProblem&) = default;
};

using RotaryPlan = Plan<config::RotaryConfig>;

/// One kernel, or none where nothing is written. Throws Error(kUnsupported) for a GPU without
/// kernels, and for 2^31 tokens or elements of a token.
RotaryPlan plan_rotary(const RotaryProblem& problem, const Gpu& gpu);

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
