// The places of a linear layer's casts in the memory that it is given (octofold/linear.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "octofold/cast_targets.h"
#include "octofold/linear.h"
#include "octofold/tensor.h"

namespace octofold::ops {

/// The casts that forward keeps for backward, as far as they are wanted.
struct KeptCasts {
  std::optional<CastTarget> x_transposed, weight_transposed;
  std::int64_t bytes = 0;
};
KeptCasts kept_casts(const LinearProblem& problem, std::byte* memory);

/// The operands that forward multiplies.
struct ForwardCasts {
  CastTarget x;
  std::optional<CastTarget> weight;
  std::int64_t bytes = 0;
};
ForwardCasts forward_casts(const LinearProblem& problem, std::byte* memory);

/// The operands that backward multiplies.
struct BackwardCasts {
  std::optional<CastTarget> dy, dy_transposed;
  std::optional<MutableTensorView> sums;  ///< float32 [out], where the bias has another type
  std::optional<MutableTensorView> sums_workspace;
  std::int64_t bytes = 0;
};
BackwardCasts backward_casts(const LinearProblem& problem, std::byte* memory);

}  // namespace octofold::ops
