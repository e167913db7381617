// Products of groups of 16-bit rows, each with an FP8 matrix of its own, as for the experts of a
// layer on GPUs with FP8 units and without. The sizes of groups are numbers in device memory.
#pragma once

#include <optional>
#include <variant>

#include "octofold/cast_sources.h"
#include "octofold/export.h"
#include "octofold/grouped_gemm.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// The rows of all groups: a tensor of them, or rows that are read where they lie. Factors of
/// gathered rows multiply the sums of their products in FP32. What stands for no row gives none:
/// nothing is written there.
using RowsOfGroups = std::variant<TensorView, GatheredRows>;

/// Groups of rows; DepthGroups have no weights.
using WeightOnlyGroups = std::variant<RowGroups, MaskedGroups>;

/// out[rows of g] = x[rows of g] · w[g]ᵀ (+ bias[g]).
struct GroupedGemmWeightOnlyArguments {
  /// RowGroups: [M, K], or gathered, M being the number of sources. MaskedGroups: [G, rows, K], a
  /// tensor. float16 or bfloat16; columns contiguous, any row stride.
  RowsOfGroups x;
  /// [G, N, K]: e4m3 or e5m2, any granularity, but no two-level scales; columns (K) contiguous, one
  /// row stride, from group to group too. Scales as those of b in grouped_gemm.h. The bytes are
  /// those of checkpoints: nothing is repacked.
  ScaledTensorView w;
  WeightOnlyGroups groups;
  /// [M, N]; MaskedGroups: [G, rows, N]. Of x's type or float32; columns contiguous, rows that do
  /// not overlap, nor any other tensor. Rows of no group are not written.
  MutableTensorView out;
  /// [G, N], of out's type or float32, contiguous.
  std::optional<TensorView> bias{};
  /// The same as in gemm_weight_only(), for any groups: a row depends on itself and its group's W.
  bool batch_invariant = false;
};

/// Arithmetic and rounding are those of gemm_weight_only(). On a GPU only the matrices of groups
/// that have rows are read. Throws Error as grouped_gemm() does, and kUnsupported for bfloat16 on
/// GPUs before 8.0, which have no products of it.
OCTOFOLD_API void grouped_gemm_weight_only(const GroupedGemmWeightOnlyArguments& arguments,
                                           Stream stream = {});

/// out[rows of g] = gradient[rows of g] · w[g]: the gradient by x of grouped_gemm_weight_only().
struct GroupedGemmWeightOnlyGradientArguments {
  /// Rows like those of x, with N columns. If experts' results are summed with weights, it is
  /// the gradient by the sum, gathered with the weights as factors.
  RowsOfGroups gradient;
  ScaledTensorView w;  ///< as in grouped_gemm_weight_only()
  WeightOnlyGroups groups;
  /// [M, K]; MaskedGroups: [G, rows, K]. As in grouped_gemm_weight_only().
  MutableTensorView out;
  /// The same as in grouped_gemm_weight_only().
  bool batch_invariant = false;
};

/// Works like grouped_gemm_weight_only(). Scales that differ along N are treated as in
/// gemm_weight_only_gradient().
OCTOFOLD_API void grouped_gemm_weight_only_gradient(
    const GroupedGemmWeightOnlyGradientArguments& arguments, Stream stream = {});

}  // namespace octofold
