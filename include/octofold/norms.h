// RMSNorm and LayerNorm: fused with the FP8 cast that follows, and backward.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/casts.h"
#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

namespace octofold {

// Matrices x [..., K] are float32, float16 or bfloat16 and count as [rows, K], as in casts.h;
// columns are contiguous. What is only read may have any row stride, what is written rows that do
// not overlap. Of each row
//
//   kLayer: mean = Σ x / K, variance = Σ (x - mean)² / K;  n = (x - mean) · rstd
//   kRms:                   variance = Σ x² / K;           n = x · rstd
//   rstd = 1 / sqrt(variance + epsilon)
//   y = n · weight + bias, then y · (1 + scale) + shift, as far as these are given
//
// Statistics are float32: on a GPU summed in that type, on the CPU in double and rounded once, so
// that they may differ in the last bits. (Of no columns, a mean is 0.) From them y is computed in
// float32, each operation rounded by itself, and then rounded once to x's type. The same input
// gives the same bits.

/// The vectors that are applied to each row: x's dtype or float32, contiguous columns.
struct NormOperands {
  std::optional<TensorView> weight{};  ///< [K]
  std::optional<TensorView> bias{};    ///< [K]
  /// [batch, K], of any row stride, where batch divides rows: rows of one batch follow each other.
  /// Adaptive norms of diffusion transformers have them.
  std::optional<TensorView> scale{};
  std::optional<TensorView> shift{};  ///< likewise, of as many batches
};

struct NormArguments {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-6f;  ///< finite, at least 0
  TensorView x{};         ///< [..., K]
  /// x's shape and dtype: it is added to x first. The sum, rounded to x's dtype, is what is normed.
  std::optional<TensorView> residual{};
  NormOperands operands{};

  // Written.
  std::optional<MutableTensorView>
      sum{};                 ///< with a residual: x's shape and dtype; may be residual
  MutableTensorView rstd{};  ///< float32 [rows], contiguous
  std::optional<MutableTensorView> mean{};  ///< likewise, of kLayer
};

/// Casts y as quantize() casts a tensor of x's dtype that holds it, for the same targets with the
/// same options: on each device, codes and scales have the bits of quantize(y) there.
///
/// On a GPU one kernel where rows have scales of their own (channel, 1x128) and `out.rows` alone is
/// wanted, which reads x once; else a kernel for statistics and sum comes before those of the cast,
/// which read x, or the sum, and the statistics. No memory besides the results is used.
/// Errors: as those of quantize(). Inf and NaN follow IEEE rules.
OCTOFOLD_API void quantize_norm(const NormArguments& arguments, const CastTargets& out,
                                const QuantizeOptions& options = {}, Stream stream = {});

struct NormBackwardArguments {
  NormKind kind = NormKind::kRms;
  TensorView dy{};    ///< [..., K]: the gradient by y
  TensorView x{};     ///< dy's shape and dtype: what was normed, the sum where there is one
  TensorView rstd{};  ///< as quantize_norm() wrote it
  std::optional<TensorView> mean{};  ///< likewise, of kLayer
  NormOperands operands{};           ///< as they were given to quantize_norm()
  /// dy's shape and dtype, added to dx: the gradient that reaches the sum by another way.
  std::optional<TensorView> residual_gradient{};
};

/// What is written, overwriting what was there. dx has dy's shape and dtype; the others are
/// float32, contiguous columns.
struct NormGradients {
  MutableTensorView dx{};                      ///< of x, and of the residual
  std::optional<MutableTensorView> dweight{};  ///< [K]
  std::optional<MutableTensorView> dbias{};    ///< [K]
  std::optional<MutableTensorView> dscale{};   ///< [batch, K]: with operands.scale
  std::optional<MutableTensorView> dshift{};   ///< [batch, K]: with operands.shift
  /// Where any but dx is wanted: float32 [norm_workspace_rows(), K], contiguous. What it holds
  /// afterwards is of no account.
  std::optional<MutableTensorView> workspace{};
};

/// Rows of the workspace of norm_backward() for K columns and so many batches (1 without scale and
/// shift). Depends on nothing else.
OCTOFOLD_API std::int64_t norm_workspace_rows(std::int64_t cols, std::int64_t batches = 1);

/// The gradients of y by everything that made it; arithmetic in float32 (on the CPU in double),
/// each result rounded once. Sums over rows are added up span by span in a fixed order: the same
/// input gives the same bits on a GPU, and on the CPU with any number of threads.
/// Errors: as those of quantize().
OCTOFOLD_API void norm_backward(const NormBackwardArguments& arguments,
                                const NormGradients& gradients, Stream stream = {});

}  // namespace octofold
