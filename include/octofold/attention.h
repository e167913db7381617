// Attention over keys and values in FP8, for GPUs with and without FP8 units.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/attention_arguments.h"
#include "octofold/export.h"
#include "octofold/stream.h"

namespace octofold {

/// The number of keys that share a scale, where a scale is for a block of keys.
inline constexpr std::int64_t kKeysPerScale = 128;

/// The number of elements of the workspace, for `queries` queries in all (batch times queries, or
/// total_queries). It does not depend on sequences, pages, keys or the GPU. With batch_invariant,
/// for one call or all of the process, it depends on keys too: pass in `keys` how many there are of
/// a sequence at most, which are k's keys, total_keys, or with a page table the pages of a sequence
/// times page_size. For up to 1024 keys it is 0. For more it is queries · heads · p ·
/// (value_size + 2) for p = ceil(keys / 1024) parts, where queries · heads · p is at most 131072,
/// else queries · heads · (value_size + 4). Throws Error(kInvalidArgument) for sizes below 0.
OCTOFOLD_API std::int64_t attention_workspace_size(std::int64_t queries, std::int64_t heads,
                                                   std::int64_t value_size,
                                                   std::optional<std::int64_t> keys = {});

/// out = softmax(softmax_scale · q · kᵀ) · v for each sequence and head, with sums in FP32, after
/// FlashAttention (Dao et al. 2022, arXiv:2205.14135) and for few queries Flash-Decoding (split
/// keys). Codes become numbers exactly; scales of keys multiply scores, those of values multiply
/// the weights of the softmax. On a GPU these weights are rounded to q's type for the product with
/// values; on the CPU they are not. A query that sees no key has zeros. On a GPU NaN or infinity
/// among values, or their scales, may reach queries near those that see it. The same input gives
/// the same bits.
///
/// On a GPU the host does not read offsets, counts and pages. Whatever they hold, nothing outside
/// the tensors is read or written: offsets are clamped to 0 … total and to their order, counts to
/// the size of the table or tensor, pages to those that exist. On the CPU wrong numbers are errors.
///
/// Throws Error: kInvalidArgument for wrong dtypes, shapes, strides, devices or overlapping memory;
/// kUnsupported for bfloat16 on GPUs before 8.0, and where there are no kernels; kUnavailable
/// without a usable driver or compiler.
OCTOFOLD_API void attention(const AttentionArguments& arguments, Stream stream = {});

}  // namespace octofold
