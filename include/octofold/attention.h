// Attention over keys and values in FP8, for GPUs with and without FP8 units.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// How many keys share a scale where scales are of blocks of keys.
inline constexpr std::int64_t kKeysPerScale = 128;

/// Keys, or values: codes, and what takes them back to numbers.
struct AttentionOperand {
  /// e4m3 or e5m2, the last dimension contiguous, any strides else. One of
  ///   [batch, keys, kv_heads, head_size];
  ///   [total_keys, kv_heads, head_size], sequences one behind another, with `key_offsets`;
  ///   [pages, page_size, kv_heads, head_size], with `page_table`.
  TensorView data;
  /// float32; none: 1. The multiplier of codes, one of
  ///   one element: of the whole tensor;
  ///   [kv_heads]: of each head;
  ///   of 128 keys of a sequence and a head: [batch, ceil(keys / 128), kv_heads], or with
  ///     `key_offsets` [total_keys / 128 + batch, kv_heads], where sequence b begins at
  ///     key_offsets[b] / 128 + b;
  ///   with `page_table` [pages, kv_heads]: of a page and a head.
  /// Any strides. A shape that could be two of these counts as the first.
  std::optional<TensorView> scale{};
};

struct AttentionArguments {
  /// float16 or bfloat16, [batch, queries, heads, head_size], or with `query_offsets`
  /// [total_queries, heads, head_size]; the last dimension contiguous. head_size: a multiple of 8
  /// from 8 to 256. heads: a multiple of kv_heads, h belongs to key head h / (heads / kv_heads).
  /// With `query_offsets` keys have one of the three layouts too: those of K and V with a batch
  /// are of as many sequences as there are offsets, less one.
  TensorView q;
  AttentionOperand k;
  /// Of k's shape; its type may be the other one.
  AttentionOperand v;
  /// Of q's shape and type; the last dimension contiguous, elements apart. Apart from all else.
  MutableTensorView out;
  /// float32 [batch, heads, queries], or with `query_offsets` [heads, total_queries]; any strides:
  /// the natural logarithm of the sum of exp of the scores that count; -inf where none does.
  std::optional<MutableTensorView> log_sum_exp{};

  /// int32 [batch + 1], contiguous: where the queries of each sequence begin, and the end. Queries
  /// behind the end have no results: their elements of the outputs stay as they are.
  std::optional<TensorView> query_offsets{};
  /// int32 [batch + 1], contiguous: the same of keys. With `query_offsets` only.
  std::optional<TensorView> key_offsets{};
  /// int32 [batch], contiguous: how many keys of each sequence count; without it all that there
  /// are. Required with `page_table`, not with `key_offsets`.
  std::optional<TensorView> key_counts{};
  /// int32 [batch, pages of a sequence], rows of any stride: page i of sequence b has its keys
  /// i · page_size to (i + 1) · page_size - 1. page_size: a power of two from 16 to
  /// 2^30. Entries behind the last key that counts are not looked at.
  std::optional<TensorView> page_table{};

  /// Scores are q · k times this, a finite number; 0: 1 / sqrt(head_size).
  float softmax_scale = 0;
  /// Query i of q queries, at place p = i + keys - q among the keys of its sequence, sees keys
  /// p - window_left to p + window_right; a negative number is no limit. Causal: window_right = 0.
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;

  /// float32 [attention_workspace_size()], contiguous. What it holds is of no account; the CPU
  /// backend does not look at it.
  MutableTensorView workspace;
};

/// Elements of the workspace, for `queries` queries in all (batch times queries, or total_queries):
/// the same whatever sequences, pages and keys are, and whatever GPU computes. Throws
/// Error(kInvalidArgument) for sizes below 0.
OCTOFOLD_API std::int64_t attention_workspace_size(std::int64_t queries, std::int64_t heads,
                                                   std::int64_t head_size);

/// out = softmax(softmax_scale · q · kᵀ) · v for each sequence and head, with sums in FP32, after
/// FlashAttention (Dao et al. 2022, arXiv:2205.14135) and for few queries Flash-Decoding (split
/// keys). Codes become numbers exactly; scales of keys multiply scores, those of values the weights
/// of the softmax. On a GPU these are rounded to q's type for the product with values, on the CPU
/// not. A query that sees no key has zeros. On a GPU NaN or infinity among values, or their scales,
/// may reach queries near those that see it. The same input gives the same bits.
///
/// On a GPU offsets, counts and pages are not looked at by the host: whatever they hold, nothing
/// outside the tensors is read or written (offsets are held to 0 … total and to their order, counts
/// to what the table or tensor has, pages to those there are). On the CPU such are errors.
///
/// Throws Error: kInvalidArgument for wrong dtypes, shapes, strides, devices or overlapping memory;
/// kUnsupported for bfloat16 on GPUs before 8.0, and without kernels; kUnavailable without a usable
/// driver or compiler.
OCTOFOLD_API void attention(const AttentionArguments& arguments, Stream stream = {});

}  // namespace octofold
