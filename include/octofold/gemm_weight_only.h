// Products with FP8 weights and wide activations, for GPUs with and without FP8 units.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/dot.h"
#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// The most rows of an x that is not float16 or bfloat16.
inline constexpr std::int64_t kMostVectors = 16;

/// out[..., N] = x[..., K] · W[N, K]ᵀ (+ bias[N]).
struct GemmWeightOnlyArguments {
  /// The leading dimensions together are M rows; columns (K) contiguous, any row stride. float16 or
  /// bfloat16, without scales; or up to kMostVectors rows of float32, e4m3 or e5m2, of FP8 with
  /// scales of any granularity or without.
  DotOperand x;
  /// e4m3 or e5m2, any granularity, but no two-level scales; columns (K) contiguous, any row
  /// stride. The bytes are those of checkpoints: nothing is repacked.
  ScaledTensorView w;
  /// Has x's type or float32; for an x of float32 or FP8: float32, float16 or bfloat16. Columns
  /// contiguous, rows that do not overlap, nor any other tensor.
  MutableTensorView out;
  /// Has out's type or float32, contiguous. Only beside an x of float16 or bfloat16.
  std::optional<TensorView> bias{};
  /// float32 [weight_only_workspace_size(M, N, K)], contiguous. With it blocks of a GPU use split-K
  /// where that is faster, as for some tens of rows. Its contents do not matter.
  std::optional<MutableTensorView> workspace{};
  /// A row of out depends on that row of x alone, not on how many rows there are nor on its place:
  /// how the sum is divided follows from W and the types (docs/batch-invariance.md). The workspace
  /// is not used.
  bool batch_invariant = false;
};

/// The number of elements of the workspace, for `rows` · `columns` sums of `depth` products; 0
/// where a workspace is of no use. It does not depend on the GPU. Throws Error(kInvalidArgument)
/// for sizes below 0.
OCTOFOLD_API std::int64_t weight_only_workspace_size(std::int64_t rows, std::int64_t columns,
                                                     std::int64_t depth);

/// M, N, K ≥ 0; with K = 0 the sum is 0.
///
/// Codes become numbers of x's type exactly (of an FP8 x both become float16); their products are
/// added in FP32, in a fixed order: the same input gives the same bits. Scales that vary along K
/// multiply the sums of their 128 values, others the whole sum. (Of an x of float32 or FP8 the CPU
/// backend adds the sums of 128 in FP64.) The bias is added in FP32, and the result is rounded once
/// to out's type. Throws Error as gemm() does; kUnsupported for bfloat16 on GPUs before 8.0, which
/// have no products of it.
OCTOFOLD_API void gemm_weight_only(const GemmWeightOnlyArguments& arguments, Stream stream = {});

/// out[..., K] = gradient[..., N] · W[N, K]: the gradient by x of gemm_weight_only().
struct GemmWeightOnlyGradientArguments {
  /// float16 or bfloat16; columns (N) contiguous, any row stride.
  TensorView gradient;
  /// The same as in gemm_weight_only().
  ScaledTensorView w;
  /// [..., K], of gradient's type or float32; columns contiguous, rows that do not overlap, nor any
  /// other tensor.
  MutableTensorView out;
  /// The same as in gemm_weight_only(), with weight_only_workspace_size(M, K, N) elements.
  std::optional<MutableTensorView> workspace{};
  /// The same as in gemm_weight_only().
  bool batch_invariant = false;
};

/// Works like gemm_weight_only(). Scales that differ along N multiply codes as numbers of the type
/// of `gradient`, which rounds each weight once more. (The CPU backend multiplies them in FP32.)
OCTOFOLD_API void gemm_weight_only_gradient(const GemmWeightOnlyGradientArguments& arguments,
                                            Stream stream = {});

}  // namespace octofold
