// A norm and the linear layer after it in FP8, casts included: forward in one call, backward in
// another. The norm is cast as it is computed, and is never in memory as numbers.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <variant>

#include "octofold/cast_sources.h"
#include "octofold/export.h"
#include "octofold/linear.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// The norm of x + residual that a layer multiplies in place of x (Normed has the formula).
struct InputNorm {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-6f;
};

/// The linear layer of a norm's result. `linear.grad_input` stands for the gradients of x, of the
/// residual, which is the same, and of the norm's operands.
struct NormLinearProblem {
  LinearProblem linear{};
  InputNorm norm{};
  DType x = DType::kBFloat16;  ///< the type of x, residual, sum and their gradient
};

/// Throws Error(kInvalidArgument) as linear_memory() does, and for a norm that is none.
OCTOFOLD_API LayerMemory norm_linear_memory(const NormLinearProblem& problem);

struct NormLinearForward {
  TensorView x;                            ///< as in LinearForward, of the problem's type
  std::optional<TensorView> residual{};    ///< as x
  NormOperands operands{};                 ///< weight and bias
  std::optional<MutableTensorView> sum{};  ///< x + residual, where there is a residual: as x
  std::variant<TensorView, ScaledTensorView> weight;
  std::optional<TensorView> bias{};
  MutableTensorView y;
  std::span<std::byte> kept{};
  std::span<std::byte> workspace{};
};

/// y = norm(x + residual) · weightᵀ (+ bias): what cast() of a Normed and gemm() do one after
/// another, to the bit. The other arguments, memory, streams and errors are those of
/// linear_forward().
OCTOFOLD_API void norm_linear_forward(const NormLinearProblem& problem,
                                      const NormLinearForward& arguments, Stream stream = {});

struct NormLinearBackward {
  TensorView dy;
  std::optional<TensorView> x{};  ///< what was normed, where dx is wanted: x, or the sum
  NormOperands operands{};
  std::optional<TensorView> sum_gradient{};  ///< added to dx: that by the sum, as x
  std::optional<ScaledTensorView> weight_transposed{};
  std::optional<MutableTensorView> dx{};  ///< of x and of the residual: as x
  /// The gradients of the norm's operands [in], float32, bfloat16 or float16, contiguous, as far as
  /// they are given, beside dx.
  std::optional<MutableTensorView> dnorm_weight{};
  std::optional<MutableTensorView> dnorm_bias{};
  std::optional<MutableTensorView> dw{};
  std::optional<MutableTensorView> db{};
  bool adds_to_dw = false;
  std::span<std::byte> kept{};
  std::span<std::byte> workspace{};
};

/// The gradients, from one cast of dY and norm_gradient(). The other arguments, memory and errors
/// are those of linear_backward().
OCTOFOLD_API void norm_linear_backward(const NormLinearProblem& problem,
                                       const NormLinearBackward& arguments, Stream stream = {});

}  // namespace octofold
