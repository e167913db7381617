// A linear layer in FP8, casts included: its forward in one call, its backward in another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "octofold/export.h"
#include "octofold/format.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/vocabulary.h"

namespace octofold {

/// How one product a · bᵀ of a layer is made: how its operands are cast, as gemm() reads them, and
/// what gemm() is told besides.
struct LinearProduct {
  Format a{};
  Format b{};
  bool fast_accumulation = false;
  bool batch_invariant = false;
};

/// For x [tokens, in], weight [out, in] and dY, the gradient of y [tokens, out]:
///
/// | field       | product     | operand a         | operand b         | sums over |
/// |-------------|-------------|-------------------|-------------------|-----------|
/// | output      | x · weightᵀ | x [tokens, in]    | weight [out, in]  | in        |
/// | grad_input  | dY · weight | dY [tokens, out]  | weightᵀ [in, out] | out       |
/// | grad_weight | dYᵀ · x     | dYᵀ [out, tokens] | xᵀ [in, tokens]   | tokens    |
///
/// An operand that stands in two products is cast for both at once, so its two formats go together
/// as CastTargets says.
struct LinearRecipe {
  LinearProduct output{};
  LinearProduct grad_input{};
  LinearProduct grad_weight{};
};

/// A layer's sizes, and what its backward is to give: nothing is cast or kept for what it is not.
struct LinearProblem {
  std::int64_t tokens = 0;
  std::int64_t in_features = 1;
  std::int64_t out_features = 1;
  LinearRecipe recipe{};
  bool grad_input = false;
  bool grad_weight = false;
  bool grad_bias = false;
  /// True if the weight comes as its cast, which the caller keeps for several calls, and the cast
  /// of its transpose too where backward gives the gradient of x.
  bool weight_is_cast = false;
  Device device{};
};

/// The memory that a layer takes besides its tensors, in bytes; the caller's, on the layer's
/// device, at a multiple of 16.
struct LayerMemory {
  std::int64_t kept = 0;      ///< written by forward, read by backward
  std::int64_t forward = 0;   ///< used within the call alone
  std::int64_t backward = 0;  ///< likewise
};

/// Throws Error(kInvalidArgument) for sizes below 0 or above 2^28, no features, and an unknown
/// device or granularity.
OCTOFOLD_API LayerMemory linear_memory(const LinearProblem& problem);

struct LinearForward {
  /// float32, float16 or bfloat16 [..., in], tokens rows; columns contiguous, any row stride. With
  /// an activation what it takes: [..., 2·in] for a gated one.
  TensorView x;
  /// The layer's input is what this makes of x, as it is cast. Backward's dx is the gradient by
  /// that input.
  std::optional<Activation> activation{};
  /// [out, in] likewise; or its cast, in the format of recipe.output.b.
  std::variant<TensorView, ScaledTensorView> weight;
  std::optional<TensorView> bias{};  ///< [out], of y's type or float32
  /// [..., out] bfloat16, float16 or float32. Omitted where the caller makes it, in high precision:
  /// then only what backward reads is cast.
  std::optional<MutableTensorView> y{};
  std::span<std::byte> kept{};
  std::span<std::byte> workspace{};
};

/// y = x · weightᵀ (+ bias): what cast() and gemm() do one after another, to the bit. Where nothing
/// of x is kept and there are few tokens, a GPU of 9.0 casts x in the product (gemm.h), which may
/// sum in another order.
///
/// `kept` and `workspace` have at least the bytes that linear_memory() says. On a GPU all is queued
/// on `stream`; it may be captured in a CUDA graph.
/// Throws Error as cast() and gemm() do, and kInvalidArgument that names what does not fit the
/// problem.
OCTOFOLD_API void linear_forward(const LinearProblem& problem, const LinearForward& arguments,
                                 Stream stream = {});

struct LinearBackward {
  /// The gradient of y: float32, float16 or bfloat16 [..., out], columns contiguous.
  TensorView dy;
  /// The cast of the weight's transpose [in, out], in the format of recipe.grad_input.b, where the
  /// weight came as its cast and dx is wanted.
  std::optional<ScaledTensorView> weight_transposed{};
  /// The gradients that the problem wants, each bfloat16, float16 or float32: that of x [..., in],
  std::optional<MutableTensorView> dx{};
  /// of the weight [out, in],
  std::optional<MutableTensorView> dw{};
  /// and of the bias [out], contiguous.
  std::optional<MutableTensorView> db{};
  /// True if the weight's gradient is added to what dw holds.
  bool adds_to_dw = false;
  std::span<std::byte> kept{};
  std::span<std::byte> workspace{};
};

/// The gradients, from one cast of dY: dx = dY · weight, dw = dYᵀ · x, db = dY summed over tokens.
/// What linear_forward() has kept is read and stays as it is. Memory and errors as there.
OCTOFOLD_API void linear_backward(const LinearProblem& problem, const LinearBackward& arguments,
                                  Stream stream = {});

}  // namespace octofold
