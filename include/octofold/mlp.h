// Two linear layers in FP8 and the activation between them, casts included, with or without a norm
// in front: forward in one call, backward in another. The activation is cast as it is computed, and
// so is the gradient by its input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "octofold/cast_sources.h"
#include "octofold/export.h"
#include "octofold/linear.h"
#include "octofold/norm_linear.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// y = activation(x · upᵀ (+ bias)) · downᵀ (+ bias), of a norm of x + residual in place of x where
/// there is one. For a gated activation `up` has the gate's rows first, then as many of up.
struct MlpProblem {
  std::int64_t tokens = 0;
  std::int64_t in_features = 1;
  std::int64_t hidden_features = 1;  ///< of the activation
  std::int64_t out_features = 1;
  Activation activation = Activation::kSwiGlu;
  LinearRecipe recipe{};  ///< of both layers
  std::optional<InputNorm> norm{};
  DType x = DType::kBFloat16;  ///< the type of x, residual, sum and their gradient
  DType y = DType::kBFloat16;  ///< the type of y, and of the first product's result
  bool grad_input = false;     ///< as in NormLinearProblem
  bool grad_up = false;
  bool grad_up_bias = false;
  bool grad_down = false;
  bool grad_down_bias = false;
  /// True if the activation's input is kept for backward in FP8 (e4m3, scales of 1x128, by the rule
  /// of recipe.output.a), in half of the memory. Gradients through the activation then have that
  /// cast's error too.
  bool keeps_fp8 = false;
  bool has_up_bias = false;
  bool weights_are_cast = false;  ///< as in LinearProblem, of both
  Device device{};
};

/// Throws Error(kInvalidArgument) as linear_memory() and norm_linear_memory() do, and for an
/// unknown activation or type.
OCTOFOLD_API LayerMemory mlp_memory(const MlpProblem& problem);

struct MlpForward {
  TensorView x;
  std::optional<TensorView> residual{};
  NormOperands operands{};
  std::optional<MutableTensorView> sum{};
  /// [hidden, in], for a gated activation [2 · hidden, in].
  std::variant<TensorView, ScaledTensorView> up_weight;
  std::optional<TensorView> up_bias{};
  std::variant<TensorView, ScaledTensorView> down_weight;  ///< [out, hidden]
  std::optional<TensorView> down_bias{};
  MutableTensorView y;
  std::span<std::byte> kept{};
  std::span<std::byte> workspace{};
};

/// Computes what cast(), gemm() and, where nothing through the activation is kept and its operands
/// fit, gated_gemm() do one after another, to the bit. Arguments, memory, streams and errors are
/// those of norm_linear_forward().
OCTOFOLD_API void mlp_forward(const MlpProblem& problem, const MlpForward& arguments,
                              Stream stream = {});

struct MlpBackward {
  TensorView dy;
  std::optional<TensorView> x{};  ///< what was normed, where there is a norm and dx is wanted
  NormOperands operands{};
  std::optional<TensorView> sum_gradient{};
  std::optional<ScaledTensorView> up_transposed{};    ///< where weights are cast and dx is wanted
  std::optional<ScaledTensorView> down_transposed{};  ///< and anything before the activation is
  std::optional<MutableTensorView> dx{};
  std::optional<MutableTensorView> dnorm_weight{};
  std::optional<MutableTensorView> dnorm_bias{};
  std::optional<MutableTensorView> dup{};
  std::optional<MutableTensorView> dup_bias{};
  std::optional<MutableTensorView> ddown{};
  std::optional<MutableTensorView> ddown_bias{};
  bool adds_to_dup = false;
  bool adds_to_ddown = false;
  std::span<std::byte> kept{};
  std::span<std::byte> workspace{};
};

/// The gradients. Arguments, memory and errors are those of norm_linear_backward().
OCTOFOLD_API void mlp_backward(const MlpProblem& problem, const MlpBackward& arguments,
                               Stream stream = {});

}  // namespace octofold
