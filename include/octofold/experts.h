// A layer of experts in FP8 (MoE), casts included: each token goes to a few of many MLPs, and their
// results are summed with weights. Forward in one call, backward in another. The host reads no
// number of tokens: the order of rows is found, and groups are multiplied, on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "octofold/export.h"
#include "octofold/linear.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// For each token t and its experts e = topk_ids[t, j]:
///
///   y[t] = Σ_j topk_weights[t, j] · (activation(x[t] · up[e]ᵀ (+ up_bias[e])) · down[e]ᵀ
///                                    (+ down_bias[e]))
///
/// Each expert is an MLP as in mlp.h. All products are of FP8, and so are rows of x and of the
/// activation; or the weights alone, and rows have 16 bits.
struct ExpertsProblem {
  std::int64_t tokens = 0;
  std::int64_t slots = 1;  ///< experts of a token
  std::int64_t experts = 1;
  std::int64_t in_features = 1;
  std::int64_t hidden_features = 1;  ///< of the activation
  std::int64_t out_features = 1;
  Activation activation = Activation::kSwiGlu;
  /// The recipe of both layers. Rows, output.a and grad_input.a, have no scales of 128x128: such
  /// squares would have tokens of several experts.
  LinearRecipe recipe{};
  DType y = DType::kBFloat16;  ///< the type of what products give, before it is summed
  bool grad_input = false;
  bool grad_topk_weights = false;
  bool grad_up = false;
  bool grad_up_bias = false;
  bool grad_down = false;
  bool grad_down_bias = false;
  bool has_up_bias = false;
  bool has_down_bias = false;
  bool weights_are_cast = false;  ///< as in LinearProblem, of both
  /// float16 or bfloat16: the weights alone are FP8, which come as they are and have no gradients;
  /// rows, the activation and their gradients have this type. Products are those of
  /// grouped_gemm_weight_only(); recipe.output says how weights are scaled, and batch_invariant.
  std::optional<DType> weight_only{};
  Device device{};
};

/// Throws Error(kInvalidArgument) as linear_memory() does, for an unknown activation or type, and
/// for rows with scales of 128x128. There are up to 2^16 experts, up to 2^28 rows (tokens times
/// slots), and as many of all experts' weights one below another.
OCTOFOLD_API LayerMemory experts_memory(const ExpertsProblem& problem);

struct ExpertsForward {
  /// float32, float16 or bfloat16 [..., in], as in LinearForward; of the type of weight_only.
  TensorView x;
  TensorView topk_ids;      ///< int32 [..., slots]: experts, or -1 for slots that go nowhere
  TensorView topk_weights;  ///< float32 [..., slots], contiguous
  /// [experts, hidden, in], for a gated activation [experts, 2 · hidden, in], each expert's gate
  /// first: in one piece, or any row stride; or their casts, in the format of recipe.output.b (of
  /// either FP8 type), with scales as grouped_gemm() takes them. Of numbers those alone are read
  /// whose experts have tokens.
  std::variant<TensorView, ScaledTensorView> up_weight;
  std::optional<TensorView> up_bias{};  ///< [experts, rows of an expert], as for grouped_gemm()
  std::variant<TensorView, ScaledTensorView> down_weight;  ///< [experts, out, hidden]
  std::optional<TensorView> down_bias{};                   ///< [experts, out]
  MutableTensorView y;  ///< [..., out] bfloat16, float16 or float32
  std::span<std::byte> kept{};
  std::span<std::byte> workspace{};
};

/// Does, to the bit, what these do one after another: sort_by_expert(), cast() of GatheredRows,
/// grouped_gemm(), cast() of Activated, grouped_gemm() and combine(). In place of the first product
/// and its activation it is gated_gemm(), where nothing of them is kept and the operands fit. A
/// token of which no slot goes anywhere has zeros. With weight_only it is sort_by_expert(),
/// grouped_gemm_weight_only() of GatheredRows, the values that a cast of Activated reads, such a
/// product of these, and combine().
///
/// Memory and streams as in linear_forward(); what is on the device may change from replay to
/// replay of a CUDA graph. Throws Error as these functions do, and kInvalidArgument that names what
/// does not fit the problem.
OCTOFOLD_API void experts_forward(const ExpertsProblem& problem, const ExpertsForward& arguments,
                                  Stream stream = {});

struct ExpertsBackward {
  TensorView dy;  ///< the gradient of y: float32, float16 or bfloat16 [..., out]
  TensorView topk_weights;
  /// Both where there is a down_bias and the gradient of topk_weights is wanted.
  std::optional<TensorView> topk_ids{};
  std::optional<TensorView> down_bias{};
  /// The casts of the weights' transposes, in the format of recipe.grad_input.b: where weights are
  /// cast, [experts, in, rows of an expert] if dx is wanted,
  std::optional<ScaledTensorView> up_transposed{};
  /// and [experts, hidden, out] if anything but the gradients of `down` and its bias is. With
  /// weight_only the weights themselves.
  std::optional<ScaledTensorView> down_transposed{};
  /// The gradients that the problem wants, each bfloat16, float16 or float32, in the shapes of what
  /// they belong to; but that of topk_weights is float32.
  std::optional<MutableTensorView> dx{};
  std::optional<MutableTensorView> dtopk_weights{};
  std::optional<MutableTensorView> dup{};
  std::optional<MutableTensorView> dup_bias{};
  std::optional<MutableTensorView> ddown{};
  std::optional<MutableTensorView> ddown_bias{};
  bool adds_to_dup = false;  ///< True if the gradient is added to what is there
  bool adds_to_ddown = false;
  std::span<std::byte> kept{};
  std::span<std::byte> workspace{};
};

/// The gradients. The weights of the routing enter in the transposed casts of x and dY, in sums for
/// biases (expert_sums()), and in the last sum, combine(); that by topk_weights is
/// activation_dots(), plus combine_gradient() of the biases. Experts without tokens have gradients
/// of 0. What experts_forward() has kept is read and stays as it is. Memory and errors as there.
OCTOFOLD_API void experts_backward(const ExpertsProblem& problem, const ExpertsBackward& arguments,
                                   Stream stream = {});

}  // namespace octofold
