// The backward pass of RMSNorm and LayerNorm.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/cast_sources.h"
#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// What is read: matrices with contiguous columns and any row stride. cast_sources.h has the norm.
struct NormGradientArguments {
  NormKind kind = NormKind::kRms;
  TensorView gradient{};  ///< [..., K]: that by y; float32, float16 or bfloat16
  TensorView x{};  ///< the gradient's shape and dtype: what was normed, the sum where there is one
  TensorView rstd{};                 ///< as cast() of a Normed wrote it
  std::optional<TensorView> mean{};  ///< likewise, of kLayer
  NormOperands operands{};           ///< as they were given to cast() of a Normed
  /// The gradient's shape and dtype, added to dx: the gradient that reaches the sum by another way.
  std::optional<TensorView> residual_gradient{};
};

/// What is written, overwriting what was there. dx has the gradient's shape and dtype, and rows
/// that do not overlap; the others are float32, contiguous columns.
struct NormGradients {
  MutableTensorView dx{};                          ///< of x, and of the residual
  std::optional<MutableTensorView> dweight{};      ///< [K]
  std::optional<MutableTensorView> dbias{};        ///< [K]
  std::optional<MutableTensorView> d_ada_scale{};  ///< [batch, K]: with operands.ada_scale
  std::optional<MutableTensorView> d_ada_shift{};  ///< [batch, K]: with operands.ada_shift
  /// Where any but dx is wanted: float32 [norm_workspace_rows(), K], contiguous. What it holds
  /// afterwards is of no account.
  std::optional<MutableTensorView> workspace{};
};

/// Rows of the workspace of norm_gradient() for K columns and so many batches (1 without
/// ada_scale and ada_shift). Depends on nothing else.
OCTOFOLD_API std::int64_t norm_workspace_rows(std::int64_t cols, std::int64_t batches = 1);

/// The gradients of y by everything that made it; arithmetic in float32 (on the CPU in double),
/// each result rounded once. Sums over rows are added up span by span in a fixed order: the same
/// input gives the same bits on a GPU, and on the CPU with any number of threads.
/// Errors: as those of cast().
OCTOFOLD_API void norm_gradient(const NormGradientArguments& arguments,
                                const NormGradients& gradients, Stream stream = {});

}  // namespace octofold
