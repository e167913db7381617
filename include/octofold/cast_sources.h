// The sources of a cast: a matrix in memory, or one that is computed on the way and is nowhere in
// memory.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "octofold/tensor.h"
#include "octofold/vocabulary.h"

namespace octofold {

// All matrices that a source reads have contiguous columns and any row stride (0 and negative too).
// "Numbers" are float32, float16 or bfloat16. Leading dimensions count as rows, as in
// cast_targets.h.

/// activation(x), [..., K]. vocabulary.h has the activations; each is computed in FP32 and rounded
/// once, to x's dtype. NaN and infinities follow IEEE rules; at -∞ SiLU and GELU are NaN.
struct Activated {
  /// [..., 2·K] for a gated activation, gate and up by `layout`; else [..., K]. Numbers, or FP8 of
  /// any granularity. The result for FP8 has the bits of that for
  /// dequantize(x) in `dtype`. A scale belongs to columns of x as they lie, gate and up.
  std::variant<TensorView, ScaledTensorView> x{};
  Activation activation = Activation::kSwiGlu;
  GateLayout layout = GateLayout::kHalves;
  /// The dtype of an FP8 x's values: float32, float16 or bfloat16.
  DType dtype = DType::kBFloat16;
};

/// The gradient by x, computed from `gradient`, that by activation(x). The backward pass of the
/// linear layer before the activation multiplies with it. It has x's shape, with gate and up as in
/// x.
struct ActivationGradient {
  /// [..., K], numbers of x's dtype.
  TensorView gradient{};
  /// The same as in Activated. The values of an FP8 x are rounded to the dtype of `gradient`.
  std::variant<TensorView, ScaledTensorView> x{};
  Activation activation = Activation::kSwiGlu;
  GateLayout layout = GateLayout::kHalves;
};

/// The vectors that a norm applies to each row: x's dtype or float32, contiguous columns.
struct NormOperands {
  std::optional<TensorView> weight{};  ///< [K]
  std::optional<TensorView> bias{};    ///< [K]
  /// [batch, K], of any row stride, where batch divides rows: rows of one batch follow each other.
  /// These are the vectors of the adaptive norms (AdaLN) of diffusion transformers.
  std::optional<TensorView> ada_scale{};
  std::optional<TensorView> ada_shift{};  ///< likewise, of as many batches
};

/// y, the norm of x [..., K], in x's dtype. For each row
///
///   kLayer: mean = Σ x / K, variance = Σ (x - mean)² / K;  n = (x - mean) · rstd
///   kRms:                   variance = Σ x² / K;           n = x · rstd
///   rstd = 1 / sqrt(variance + epsilon)
///   y = n · weight + bias, then y · (1 + ada_scale) + ada_shift, as far as these are given
///
/// Statistics are float32: on a GPU summed in that type, on the CPU in double and rounded once, so
/// that they may differ in the last bits. (Where K is 0, a mean is 0.) From them y is computed in
/// float32, each operation rounded by itself, and then rounded once to x's type. The same input
/// gives the same bits. Inf and NaN follow IEEE rules.
///
/// On a GPU, if rows have scales of their own (channel, 1x128) and only `targets.rows` is wanted,
/// one kernel does everything and reads x once. Otherwise a kernel for statistics and sum comes
/// before those of the cast, which read x, or the sum, and the statistics. No memory besides the
/// results is used.
struct Normed {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-6f;  ///< finite, at least 0
  TensorView x{};         ///< [..., K], numbers
  /// Has x's shape and dtype, and is added to x first. The sum is rounded to x's dtype and normed.
  std::optional<TensorView> residual{};
  NormOperands operands{};

  // Written for all rows, whichever are cast; their rows do not overlap.
  std::optional<MutableTensorView>
      sum{};                 ///< with a residual: x's shape and dtype; may be residual
  MutableTensorView rstd{};  ///< float32 [rows], contiguous
  std::optional<MutableTensorView> mean{};  ///< likewise, of kLayer
};

/// A matrix [rows, K] whose row p is row sources[p] / slots of x, times factors[sources[p]] if
/// there are factors, as experts need their tokens. Each row of x has `slots` flat places: token t
/// that goes to k experts has t · k … t · k + k - 1.
struct GatheredRows {
  TensorView x{};  ///< [..., K], numbers
  /// int32 [rows], contiguous. A place outside of x's stands for no row: the cast of rows writes
  /// none there (nor its scale, if it has one of its own), and in the transpose and in reductions
  /// of columns it counts as zeros. On the CPU that place is -1, and others throw kInvalidArgument.
  TensorView sources{};
  std::int64_t slots = 1;
  /// float32 [..., slots], contiguous, with the leading dimensions of x. Products are FP32, rounded
  /// to nearest even in the type of x before they are cast.
  std::optional<TensorView> factors{};
  /// The same factors, but of the transpose alone, without `factors`: experts' gradients by their
  /// weights take the one where others take the other. For casts without column reductions. With
  /// `offsets`, rows that belong to no group come from nowhere.
  std::optional<TensorView> transposed_factors{};
};

/// A matrix of numbers [..., K] as it is, or one of those above.
using CastSource = std::variant<TensorView, Activated, ActivationGradient, Normed, GatheredRows>;

}  // namespace octofold
