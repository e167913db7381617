// A product whose weights alone are FP8, as all rooms below the checks see it.
#pragma once

#include <optional>
#include <string_view>

#include "octofold/cast_sources.h"
#include "octofold/dot.h"
#include "octofold/tensor.h"

#include "core/product.h"

namespace octofold::core {

/// out = x · wᵀ (+ bias), or x · w, checked; leading dimensions are one. gemm_weight_only(),
/// grouped_gemm_weight_only() and their gradients are all of them. With groups x and out of all
/// groups lie one below another, and so do their w and bias, [count · N]; w.scale is that of the
/// first group.
struct WeightOnlyProduct {
  DotOperand x{};
  std::optional<GatheredRows> gathered{};  ///< of groups of rows: which rows of x these are
  ScaledTensorView w{};
  MutableTensorView out{};
  std::optional<TensorView> bias{};
  std::optional<MutableTensorView> workspace{};  ///< of a dense product
  bool transposed = false;                       ///< x · w
  bool batch_invariant = false;  ///< the bits of a row of out depend on that row of x alone
  Groups groups{};
  std::string_view candidate{};  ///< the configuration of this name; empty: the planner's choice
};

}  // namespace octofold::core
