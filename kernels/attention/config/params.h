// The parameters that the host passes to the kernels of attention. Strides count elements.
#pragma once

namespace octofold::config {

// Keys, or values.
struct AttentionSide {
  const unsigned char* data;
  long long outer_stride;  // from sequence to sequence, or from page to page
  long long key_stride;
  long long head_stride;
  const float* scale;  // null: there is none
  // From sequence to sequence, or from page to page; from block to block of 128 keys; from head to
  // head. A scale that all share has strides of 0.
  long long scale_outer_stride;
  long long scale_block_stride;
  long long scale_head_stride;
};

struct AttentionParams {
  const void* q;
  void* out;
  float* log_sum_exp;  // may be null
  // With query_offsets there is one sequence of all queries, so to say.
  long long q_batch_stride;
  long long q_stride;
  long long q_head_stride;
  long long out_batch_stride;
  long long out_stride;
  long long out_head_stride;
  long long log_sum_exp_batch_stride;
  long long log_sum_exp_head_stride;
  long long log_sum_exp_stride;
  AttentionSide k;
  AttentionSide v;
  const int* query_offsets;  // these four may be null
  const int* key_offsets;
  const int* key_counts;
  const int* page_table;
  long long page_table_stride;
  int batch;
  int queries;  // of each sequence; with query_offsets of all
  int keys;     // of each sequence at most; with key_offsets of all
  int heads;
  int key_heads;
  int group;        // heads of a key head
  int pages;        // that there are
  int page_shift;   // a page has 1 << page_shift keys
  int row_tiles;    // with query_offsets of all sequences at most, else of each
  int splits;       // of the keys: among blocks, which with part_keys have a part each
  int window_left;  // negative: no limit
  int window_right;
  float scale;       // of scores, times log2(e)
  bool q_vectors;    // each row of q is at a multiple of 16 bytes
  bool out_pairs;    // each row of out is at a multiple of 4 bytes
  bool out_vectors;  // of 16
  // [queries, heads, splits, value_size], then [queries, heads, splits, 2]; where a block adds
  // parts [queries, heads, value_size], then [queries, heads, 2, 2].
  float* partials;
};

// How many blocks may split a row's keys in attention, and what they leave in the workspace: a
// matter of the rows, queries times heads, so that one workspace is for all keys and GPUs; with
// parts of a fixed number of keys a matter of these too.

constexpr long long attention_splits(long long rows) {
  if (rows <= 0) return 1;
  const long long splits = 16384 / rows;
  return splits < 1 ? 1 : splits > 64 ? 64 : splits;
}

// FP32 numbers: of each row and split a sum of values, a maximum and a sum of weights.
constexpr long long attention_workspace_elements(long long rows, long long value_size) {
  const long long splits = attention_splits(rows);
  return splits == 1 ? 0 : rows * splits * (value_size + 2);
}

// The keys of a part where a row's result does not depend on the batch
// (kernels/attention/softmax.h): a multiple of each kernel's keys of a tile. Of few rows, and of
// wide heads, blocks share keys; of many rows with sums that a warp holds a block seldom has less
// than all of them, and adding a part costs more than of few.
inline constexpr int kPartKeys = 1024, kLongPartKeys = 3072;

constexpr long long attention_parts(long long keys) { return (keys + kPartKeys - 1) / kPartKeys; }

// True if each part of each row has a place in the workspace. Otherwise all parts of a row share
// one, and one block has them all.
constexpr bool attention_has_parts_apart(long long rows, long long keys) {
  constexpr long long kMost = 1 << 17;
  return rows <= kMost && attention_parts(keys) <= kMost && rows * attention_parts(keys) <= kMost;
}

// FP32 numbers: of each row and part a sum of values, a maximum and a sum of weights; or of each
// row a sum of values, and two each of the others.
constexpr long long attention_parts_elements(long long rows, long long keys, long long value_size) {
  if (attention_parts(keys) <= 1) return 0;
  if (!attention_has_parts_apart(rows, keys)) return rows * (value_size + 4);
  return rows * attention_parts(keys) * (value_size + 2);
}

}  // namespace octofold::config
