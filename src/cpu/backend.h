// The CPU backend: every operation that it offers, as octofold's functions of these names define
// them, on checked arguments. It is the reference of what the GPU's kernels compute.
#pragma once

#include <cstdint>

#include "octofold/attention.h"
#include "octofold/cast_sources.h"
#include "octofold/cast_targets.h"
#include "octofold/dot.h"
#include "octofold/norm_gradient.h"
#include "octofold/rotary.h"
#include "octofold/routing.h"
#include "octofold/tensor.h"

#include "core/product.h"
#include "kernels/cast/config/cast.h"

namespace octofold::cpu {

/// gemm(), grouped_gemm() and gated_gemm(): one product of matrices for each group. Candidates are
/// for GPUs.
void multiply(const core::Product& product);

/// gemm_weight_only(), grouped_gemm_weight_only() and their gradients, with something to write.
/// Products with 128 elements are summed in FP32; their sums too, but in FP64 where x is float32 or
/// FP8. Weights of gradients are rounded to FP32, if at all.
void multiply(const core::WeightOnlyProduct& product);

/// Blocks of 128 elements are summed in FP32, their sums in FP64. Vectors are matrices of one row.
void dot(const DotArguments& arguments);

/// `scale` is not 0. Throws for offsets, counts and pages that are out of range.
void attention(const AttentionArguments& arguments);

/// The values of the source are made, and then cast.
void cast(const CastSource& source, const CastTargets& targets, const config::CastFormat& format);
/// These values themselves, of the type of `out`.
void values(const CastSource& source, const MutableTensorView& out);

/// The norm alone: statistics and sum, and y [rows, K] in x's dtype.
void normalize(const Normed& source, const MutableTensorView& y);
/// The workspace is not looked at.
void norm_gradient(const NormGradientArguments& arguments, const NormGradients& gradients);

/// x of rank 4, cos and sin of rank 3.
void rotary(const RotaryArguments& arguments, const MutableTensorView& y);

/// Both of rank 2.
void convert_dtype(const TensorView& x, const MutableTensorView& out, Overflow overflow);
void dequantize(const ScaledTensorView& x, const MutableTensorView& out);
/// So many matrices, one below another in x and in out, both of rank 2.
void transpose(const TensorView& x, const MutableTensorView& out, std::int64_t matrices);

/// Routing checks the numbers in index tensors here: the first one out of range is an
/// Error(kInvalidArgument) that names its argument. The workspace is not looked at.
void top_k(const TopKArguments& arguments, const TopKOptions& options);
void top_k_gradient(const TopKGradientArguments& arguments, const TopKOptions& options);
void sort_by_expert(const TensorView& ids, std::int64_t experts, const SortedSlots& out);
void combine(const CombineArguments& arguments);
void combine_gradient(const CombineGradientArguments& arguments);
void activation_dots(const ActivationDotsArguments& arguments);
void expert_sums(const ExpertSumsArguments& arguments);

}  // namespace octofold::cpu
