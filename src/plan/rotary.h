// From a rotary embedding to the kernel that carries it out. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>

#include "kernels/rotary/config/rotary.h"
#include "plan/fields.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

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

}  // namespace octofold::plan
