// The arguments of attention() (octofold/attention.h): queries, keys and values, and which of them
// see which.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/tensor.h"
#include "octofold/types.h"

namespace octofold {

/// Keys, or values: codes, and the scales that take them back to numbers.
struct AttentionOperand {
  /// e4m3 or e5m2. The last dimension is contiguous, the others have any strides. One of
  ///   [batch, keys, kv_heads, size];
  ///   [total_keys, kv_heads, size], sequences one behind another, with `key_offsets`;
  ///   [pages, page_size, kv_heads, size], with `page_table`;
  /// where size is head_size of keys, value_size of values.
  TensorView data;
  /// The multiplier of the codes, float32; without it, 1. One of
  ///   one element, for the whole tensor;
  ///   [kv_heads], one for each head;
  ///   [batch, ceil(keys / 128), kv_heads], one for 128 keys of a sequence and a head; with
  ///     `key_offsets` [total_keys / 128 + batch, kv_heads], where sequence b begins at row
  ///     key_offsets[b] / 128 + b;
  ///   [pages, kv_heads] with `page_table`, one for a page and a head.
  /// The strides are arbitrary. A shape that could be two of these counts as the first.
  std::optional<TensorView> scale{};
};

struct AttentionArguments {
  /// float16 or bfloat16, [batch, queries, heads, head_size], or with `query_offsets`
  /// [total_queries, heads, head_size]; the last dimension is contiguous. head_size is a multiple
  /// of 8 from 8 to 576. heads is a multiple of kv_heads; head h reads key head h / (heads /
  /// kv_heads). With `query_offsets` keys have one of the three layouts too; if K and V have a
  /// batch, it is the number of offsets less one.
  TensorView q;
  AttentionOperand k;
  /// Has k's shape but for the last dimension, value_size, a multiple of 8 from 8 to 512; its type
  /// may differ from k's. Values may be numbers of the keys, in the same memory (a latent that both
  /// share, as DeepSeek-V3's 576 numbers, the first 512 of which are values): where they are the
  /// first ones of each key, a GPU reads them once.
  AttentionOperand v;
  /// Written. Has q's shape, but v's last dimension, and q's type; the last dimension is
  /// contiguous. Its elements overlap neither each other nor any other tensor.
  MutableTensorView out;
  /// float32 [batch, heads, queries], or with `query_offsets` [heads, total_queries]; any strides.
  /// Written: the natural logarithm of the sum of exp of the scores that count, -inf where none
  /// does.
  std::optional<MutableTensorView> log_sum_exp{};

  /// int32 [batch + 1], contiguous: where the queries of each sequence begin, and the end. Queries
  /// behind the end have no results: their elements of the outputs stay as they are.
  std::optional<TensorView> query_offsets{};
  /// int32 [batch + 1], contiguous: the same for keys. Only with `query_offsets`.
  std::optional<TensorView> key_offsets{};
  /// int32 [batch], contiguous: how many keys of each sequence count; without it, all of them.
  /// Required with `page_table`, excluded by `key_offsets`.
  std::optional<TensorView> key_counts{};
  /// int32 [batch, pages of a sequence], rows of any stride: page i of sequence b has its keys
  /// i · page_size to (i + 1) · page_size - 1. page_size is a power of two from 16 to 2^30. Entries
  /// behind the last key that counts are not read.
  std::optional<TensorView> page_table{};

  /// Scores are q · k times this, a finite number; 0: 1 / sqrt(head_size).
  float softmax_scale = 0;
  /// Query i of q queries, at place p = i + keys - q among the keys of its sequence, sees keys
  /// p - window_left to p + window_right; a negative number is no limit. Attention is causal with
  /// window_right = 0.
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;

  /// kFp8 allows scores to be products of FP8 codes with FP8 codes, the keys' own and those of
  /// queries: each query of a head is cast to e4m3 with a scale of its own, its largest
  /// magnitude over a code from 240 to 448, at the cost in accuracy that docs/attention.md states.
  /// It requires nothing: kernels without such products have exact ones. On the CPU scores are
  /// always what it says; on GPUs of compute capability 9.0 those of more than 32 queries, times
  /// the heads that share a key head, of each sequence, where heads are at most 128 and values at
  /// most 256.
  AttentionCompute compute = AttentionCompute::kExact;

  /// A row of out, a query of a head, depends on that query and the keys and values it sees alone:
  /// not on which other queries and sequences there are, nor on which place it has among them.
  /// Keys are summed in parts of a fixed number then, and the workspace is larger. On GPUs one
  /// border is left: sequences with up to 32 queries, times the heads that share a key head, have
  /// other bits than those with more (docs/batch-invariance.md).
  bool batch_invariant = false;

  /// float32 [attention_workspace_size()], contiguous. Its contents do not matter; the CPU backend
  /// does not use it.
  MutableTensorView workspace;
};

}  // namespace octofold
