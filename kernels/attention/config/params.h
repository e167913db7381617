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

}  // namespace octofold::config
