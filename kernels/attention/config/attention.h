// Attention: its kernels' configurations.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

// The layout of a sequence's keys in memory.
enum class KeyLayout {
  kDense,   // a matrix for each sequence
  kPacked,  // one sequence behind another
  kPaged,   // in pages, which a table names
};

constexpr const char* word(KeyLayout layout) {
  switch (layout) {
    case KeyLayout::kDense: return "dense";
    case KeyLayout::kPacked: return "packed";
    case KeyLayout::kPaged: return "paged";
  }
  return "?";
}

// Rows to a sequence and key head beyond which they are many: warps do not split the keys.
inline constexpr int kMostRowsOfFew = 32;

// The sequences, by their number of rows, that a kernel has if a second kernel has the others.
enum class RowCount {
  kAny,
  kFew,   // those with up to kMostRowsOfFew to a key head
  kMany,  // those with more
};

constexpr const char* word(RowCount rows) {
  switch (rows) {
    case RowCount::kAny: return "any";
    case RowCount::kFew: return "few";
    case RowCount::kMany: return "many";
  }
  return "?";
}

// The code of the largest magnitude of a query that becomes e4m3 codes, both as bits of FP32: among
// the largest codes, from 240 to 448, that which differs least but for a power of two. So the
// largest number is exact, and where all are e4m3 values the scale is a power of two.
constexpr unsigned fp8_query_code(unsigned largest) {
  constexpr unsigned k256 = 0x43800000u, k480 = 0x43F00000u, kThreeBits = 0x700000u;
  const unsigned code = k256 | ((largest + 0x80000u) & kThreeBits);
  return code == k480 ? code - 0x800000u : code;
}

// Keys of a part that has all of any sequence: a multiple of the keys of each kernel's tile.
inline constexpr int kAllPartKeys = 3 << 28;

// The properties of an attention that all of its kernels have to know.
struct AttentionForm {
  DType q = DType::kFloat16;
  DType k = DType::kE4M3;
  DType v = DType::kE4M3;
  int head_size = 128;         // of queries and keys
  int value_size = head_size;  // of values and results
  bool shared_latent = false;  // values are the first numbers of the keys, in the same memory
  KeyLayout layout = KeyLayout::kDense;
  bool k_scales = false;  // whether scales differ between keys: of blocks, or of pages
  bool v_scales = false;
  int copy_bytes = 16;  // what keys and values are copied by: 16, 8, 4, or 1
  bool split = false;   // keys are split among blocks, which leave their results in the workspace
  // Other than 0: a row's keys are summed in parts of so many, from the sequence's first key on,
  // and parts are added in their order, whatever else the block and the batch have. With `split`
  // each part has a block, else one block has them all (kernels/attention/softmax.h).
  int part_keys = 0;
  RowCount row_count = RowCount::kAny;  // of the sequences that the kernel has

  static constexpr const char* kTypeName = "octofold::config::AttentionForm";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("q", q);
    field("k", k);
    field("v", v);
    field("head_size", head_size);
    field("value_size", value_size);
    field("shared_latent", shared_latent);
    field("layout", layout);
    field("k_scales", k_scales);
    field("v_scales", v_scales);
    field("copy_bytes", copy_bytes);
    field("split", split);
    field("part_keys", part_keys);
    field("row_count", row_count);
  }
  friend constexpr bool operator==(const AttentionForm&, const AttentionForm&) = default;

  // True if a block adds part after part to what it left in the workspace.
  constexpr bool adds_parts() const { return part_keys > 0 && part_keys != kAllPartKeys && !split; }

  static constexpr int kMostOfHead = 576, kMostOfValue = 512;

  // Codes that a thread copies at a time; one by one, they make a word.
  constexpr int unit() const { return copy_bytes == 1 ? 4 : copy_bytes; }

  constexpr const char* invalid_reason() const {
    if (q != DType::kFloat16 && q != DType::kBFloat16)
      return "queries have to be float16 or bfloat16";
    if (!is_fp8(k) || !is_fp8(v)) return "keys and values have to be e4m3 or e5m2";
    if (head_size < 8 || head_size > kMostOfHead || head_size % 8 != 0) return "head_size";
    if (value_size < 8 || value_size > kMostOfValue || value_size % 8 != 0) return "value_size";
    if (shared_latent && (k != v || value_size > head_size))
      return "values that are numbers of the keys have to have their type, and no more numbers";
    if (copy_bytes != 16 && copy_bytes != 8 && copy_bytes != 4 && copy_bytes != 1) {
      return "copy_bytes has to be 16, 8, 4 or 1";
    }
    if (head_size % unit() != 0 || value_size % unit() != 0)
      return "sizes have to be multiples of what a thread copies at a time";
    return nullptr;
  }
};

inline constexpr const char* kPartReason = "a part has to have whole tiles of keys";

// Few queries: 16 rows to a block, each warp with keys of its own.
struct FewQueriesConfig {
  AttentionForm form{};
  int warps = 4;
  int stages = 3;  // of a warp's keys and values, on their way to shared memory
  int keys = 32;   // of a stage: one to a lane at most

  static constexpr const char* kHeader = "kernels/attention/few_queries.h";
  static constexpr const char* kKernel = "few_queries_kernel";
  static constexpr const char* kTypeName = "octofold::config::FewQueriesConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("warps", warps);
    field("stages", stages);
    field("keys", keys);
  }
  friend constexpr bool operator==(const FewQueriesConfig&, const FewQueriesConfig&) = default;

  static constexpr bool stays() { return false; }
  static constexpr int rows() { return 16; }
  constexpr int threads() const { return 32 * warps; }
  // Codes of a row in shared memory; zeros fill it up.
  constexpr int key_row_bytes() const { return round_up(form.head_size, 64); }
  constexpr int value_row_bytes() const { return round_up(form.value_size, 64); }
  // Keys, values, and scales of both. Values that are numbers of the keys have no memory.
  constexpr int values_offset() const { return form.shared_latent ? 0 : keys * key_row_bytes(); }
  constexpr int scales_offset() const {
    return keys * (key_row_bytes() + (form.shared_latent ? 0 : value_row_bytes()));
  }
  constexpr int stage_bytes() const {
    return scales_offset() + (form.k_scales || form.v_scales ? 2 * 4 * keys : 0);
  }
  // At the end: sums of the warps, then each row's maximum, sum and unit.
  constexpr int sums_bytes() const { return warps * rows() * 4 * value_row_bytes(); }
  // 16-bit queries lie behind both.
  constexpr int queries_offset() const {
    const int ring = warps * stages * stage_bytes(), merge = sums_bytes() + warps * rows() * 12;
    return ring > merge ? ring : merge;
  }
  constexpr int shared_bytes() const { return queries_offset() + rows() * 2 * key_row_bytes(); }

  constexpr const char* invalid_reason() const {
    if (form.invalid_reason() != nullptr) return form.invalid_reason();
    if (form.value_size > 256) return "a warp has sums of 256 numbers of a row at most";
    if (warps < 1 || warps > 8) return "a block has to have 1 to 8 warps";
    if (keys != 16 && keys != 32) return "a stage has to have 16 or 32 keys";
    if (stages < 1) return "the ring has to have at least one stage";
    if (form.part_keys % keys != 0) return kPartReason;
    return nullptr;
  }
};

// Many queries: each warp has rows of its own, and all of them all keys.
struct ManyQueriesConfig {
  AttentionForm form{};
  int warps = 4;
  int row_tiles = 2;  // of a warp, 16 rows each
  int keys = 64;      // at a time
  int buffers = 2;    // of numbers: with two the next keys are decoded while these are multiplied

  static constexpr const char* kHeader = "kernels/attention/many_queries.h";
  static constexpr const char* kKernel = "many_queries_kernel";
  static constexpr const char* kTypeName = "octofold::config::ManyQueriesConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("warps", warps);
    field("row_tiles", row_tiles);
    field("keys", keys);
    field("buffers", buffers);
  }
  friend constexpr bool operator==(const ManyQueriesConfig&, const ManyQueriesConfig&) = default;

  static constexpr bool stays() { return false; }
  constexpr int rows() const { return 16 * row_tiles * warps; }
  constexpr int threads() const { return 32 * warps; }
  // Keys whose scores a warp has in registers at a time, beside its sums.
  constexpr int score_keys() const {
    const int most = row_tiles * value_numbers() > 128 ? 32 : 64;
    return keys < most ? keys : most;
  }
  // Numbers of a row; zeros fill it up.
  constexpr int key_numbers() const { return round_up(form.head_size, 16); }
  constexpr int value_numbers() const { return round_up(form.value_size, 16); }
  // Bytes of a row of 16-bit numbers: an odd multiple of 16, so that 8 rows have all banks.
  constexpr int key_row_bytes() const { return 2 * key_numbers() + 16; }
  constexpr int value_row_bytes() const {
    return form.shared_latent ? key_row_bytes() : 2 * value_numbers() + 16;
  }
  // Keys, and values where these are not numbers of them.
  constexpr int sides() const { return form.shared_latent ? 1 : 2; }
  // Bytes of a row of codes: the same for keys and values.
  constexpr int code_bytes() const {
    return key_numbers() > value_numbers() ? key_numbers() : value_numbers();
  }
  constexpr int code_pieces() const { return keys * code_bytes() / 16; }  // of a tile
  constexpr bool has_scales() const { return form.k_scales || form.v_scales; }

  // Shared memory: queries; keys and values as 16-bit numbers, of each buffer; codes of those that
  // arrive; scales of keys and values, of those that arrive, then of each buffer.
  constexpr int numbers_offset() const { return rows() * key_row_bytes(); }
  constexpr int buffer_bytes() const {
    return keys * (key_row_bytes() + (form.shared_latent ? 0 : value_row_bytes()));
  }
  constexpr int codes_offset() const { return numbers_offset() + buffers * buffer_bytes(); }
  constexpr int scales_offset() const { return codes_offset() + sides() * 16 * code_pieces(); }
  constexpr int shared_bytes() const {
    return scales_offset() + (has_scales() ? (1 + buffers) * 8 * keys : 0);
  }

  constexpr const char* invalid_reason() const {
    if (form.invalid_reason() != nullptr) return form.invalid_reason();
    if (warps < 1 || warps > 8) return "a block has to have 1 to 8 warps";
    if (row_tiles < 1 || row_tiles > 2) return "a warp has to have one or two tiles of rows";
    if (form.value_size > 256) return "a warp has sums of 256 numbers of a row at most";
    if (buffers != 1 && buffers != 2)
      return "a block has to have one or two buffers of decoded keys and values";
    if (keys < 16 || keys % 16 != 0 || keys % score_keys() != 0)
      return "keys has to be a multiple of 16 and of the keys whose scores a warp holds";
    if (form.part_keys % keys != 0) return kPartReason;
    return nullptr;
  }
};

// Results of blocks that have split the keys.
struct CombineSplitsConfig {
  DType q = DType::kFloat16;
  int value_size = 128;
  int warps = 4;          // with some columns of a row each
  bool in_order = false;  // one split after the other, as a block adds parts that it has itself

  static constexpr const char* kHeader = "kernels/attention/combine_splits.h";
  static constexpr const char* kKernel = "combine_splits_kernel";
  static constexpr const char* kTypeName = "octofold::config::CombineSplitsConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("q", q);
    field("value_size", value_size);
    field("warps", warps);
    field("in_order", in_order);
  }
  friend constexpr bool operator==(const CombineSplitsConfig&,
                                   const CombineSplitsConfig&) = default;

  constexpr int threads() const { return 32 * warps; }
  // Columns of a warp: so few that several splits fit into its registers.
  constexpr int columns() const { return value_size > 64 ? 64 : round_up(value_size, 32); }
  constexpr int warps_of_row() const { return ceil_divide(value_size, columns()); }
  constexpr const char* invalid_reason() const {
    if (warps < 1 || warps > 32) return "a block has to have 1 to 32 warps";
    return nullptr;
  }
};

}  // namespace octofold::config
