// The backward pass of RMSNorm and LayerNorm.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/cast_sources.h"
#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// The inputs: matrices with contiguous columns and any row stride. cast_sources.h has the norm.
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

/// The results, which overwrite what was there. dx has the gradient's shape and dtype, and rows
/// that do not overlap; the others are float32 with contiguous columns.
struct NormGradients {
  MutableTensorView dx{};                          ///< of x, and of the residual
  std::optional<MutableTensorView> dweight{};      ///< [K]
  std::optional<MutableTensorView> dbias{};        ///< [K]
  std::optional<MutableTensorView> d_ada_scale{};  ///< [batch, K]: with operands.ada_scale
  std::optional<MutableTensorView> d_ada_shift{};  ///< [batch, K]: with operands.ada_shift
  /// Needed where more than dx is wanted: float32 [norm_workspace_rows(), K], contiguous. Its
  /// contents afterwards do not matter.
  std::optional<MutableTensorView> workspace{};
};

/// The number of rows of the workspace of norm_gradient(), for K columns and `batches` batches (1
/// without ada_scale and ada_shift). It depends on nothing else.
OCTOFOLD_API std::int64_t norm_workspace_rows(std::int64_t cols, std::int64_t batches = 1);

/// Computes the gradients by all operands of y. Arithmetic is float32 (on the CPU double), and each
/// result is rounded once. Sums over rows are added up span by span in a fixed order: the same
/// input gives the same bits on a GPU, and on the CPU with any number of threads.
/// Errors: as those of cast().
OCTOFOLD_API void norm_gradient(const NormGradientArguments& arguments,
                                const NormGradients& gradients, Stream stream = {});

}  // namespace octofold
