// Attention: its kernels' configurations.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

// Where the keys of a sequence are.
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

// What all kernels of an attention have to know.
struct AttentionForm {
  DType q = DType::kFloat16;
  DType k = DType::kE4M3;
  DType v = DType::kE4M3;
  int head_size = 128;
  KeyLayout layout = KeyLayout::kDense;
  bool k_scales = false;  // whether scales differ between keys: of blocks, or of pages
  bool v_scales = false;
  int copy_bytes = 16;  // what keys and values are copied by: 16, 8, 4, or 1
  bool split = false;   // keys are split among blocks, which leave their results in the workspace

  static constexpr const char* kTypeName = "octofold::config::AttentionForm";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("q", q);
    field("k", k);
    field("v", v);
    field("head_size", head_size);
    field("layout", layout);
    field("k_scales", k_scales);
    field("v_scales", v_scales);
    field("copy_bytes", copy_bytes);
    field("split", split);
  }
  friend constexpr bool operator==(const AttentionForm&, const AttentionForm&) = default;

  // Codes that a thread copies at a time; one by one, they make a word.
  constexpr int unit() const { return copy_bytes == 1 ? 4 : copy_bytes; }

  constexpr const char* invalid_reason() const {
    if (q != DType::kFloat16 && q != DType::kBFloat16)
      return "queries have to be float16 or bfloat16";
    if (!is_fp8(k) || !is_fp8(v)) return "keys and values have to be e4m3 or e5m2";
    if (head_size < 8 || head_size > 256 || head_size % 8 != 0) return "head_size";
    if (copy_bytes != 16 && copy_bytes != 8 && copy_bytes != 4 && copy_bytes != 1) {
      return "copy_bytes has to be 16, 8, 4 or 1";
    }
    if (head_size % unit() != 0)
      return "head_size has to be a multiple of what a thread copies at a time";
    return nullptr;
  }
};

// Few queries: 16 rows to a block, each warp with keys of its own.
struct FewQueriesConfig {
  AttentionForm form{};
  int warps = 4;
  int stages = 3;  // of a warp's keys and values, on their way to shared memory

  static constexpr const char* kHeader = "kernels/attention/few_queries.h";
  static constexpr const char* kKernel = "few_queries_kernel";
  static constexpr const char* kTypeName = "octofold::config::FewQueriesConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("warps", warps);
    field("stages", stages);
  }
  friend constexpr bool operator==(const FewQueriesConfig&, const FewQueriesConfig&) = default;

  static constexpr bool stays() { return false; }
  static constexpr int rows() { return 16; }
  static constexpr int keys() { return 32; }  // of a stage: one to a lane
  constexpr int threads() const { return 32 * warps; }
  // Codes of a row in shared memory; zeros fill it up.
  constexpr int row_bytes() const { return round_up(form.head_size, 64); }
  // Keys, values, and scales of both.
  constexpr int stage_bytes() const {
    return 2 * keys() * row_bytes() + (form.k_scales || form.v_scales ? 2 * 4 * keys() : 0);
  }
  // At the end: sums of the warps, then each row's maximum, sum and unit.
  constexpr int sums_bytes() const { return warps * rows() * 4 * row_bytes(); }
  // 16-bit queries lie behind both.
  constexpr int queries_offset() const {
    const int ring = warps * stages * stage_bytes(), merge = sums_bytes() + warps * rows() * 12;
    return ring > merge ? ring : merge;
  }
  constexpr int shared_bytes() const { return queries_offset() + rows() * 2 * row_bytes(); }

  constexpr const char* invalid_reason() const {
    if (form.invalid_reason() != nullptr) return form.invalid_reason();
    if (warps < 1 || warps > 8) return "a block has to have 1 to 8 warps";
    if (stages < 1) return "the ring has to have at least one stage";
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
  // Whose scores a warp has in registers at a time, beside its sums.
  constexpr int score_keys() const {
    const int most = row_tiles * numbers() > 128 ? 32 : 64;
    return keys < most ? keys : most;
  }
  // Numbers of a row; zeros fill it up.
  constexpr int numbers() const { return round_up(form.head_size, 16); }
  // Of a row of 16-bit numbers: an odd number of 16 bytes, so that 8 rows have all banks.
  constexpr int row_bytes() const { return 2 * numbers() + 16; }
  constexpr int code_bytes() const { return numbers(); }  // of a row of codes
  constexpr bool has_scales() const { return form.k_scales || form.v_scales; }

  // Shared memory: queries; keys and values as 16-bit numbers, of each buffer; codes of those that
  // arrive; scales of keys and values, of those that arrive, then of each buffer.
  constexpr int numbers_offset() const { return rows() * row_bytes(); }
  constexpr int codes_offset() const { return numbers_offset() + buffers * 2 * keys * row_bytes(); }
  constexpr int scales_offset() const { return codes_offset() + 2 * keys * code_bytes(); }
  constexpr int shared_bytes() const {
    return scales_offset() + (has_scales() ? (1 + buffers) * 8 * keys : 0);
  }

  constexpr const char* invalid_reason() const {
    if (form.invalid_reason() != nullptr) return form.invalid_reason();
    if (warps < 1 || warps > 8) return "a block has to have 1 to 8 warps";
    if (row_tiles < 1 || row_tiles > 2) return "a warp has to have one or two tiles of rows";
    if (buffers != 1 && buffers != 2)
      return "a block has to have one or two buffers of decoded keys and values";
    if (keys < 16 || keys % 16 != 0 || keys % score_keys() != 0)
      return "keys has to be a multiple of 16 and of the keys whose scores a warp holds";
    return nullptr;
  }
};

// Results of blocks that have split the keys.
struct CombineSplitsConfig {
  DType q = DType::kFloat16;
  int head_size = 128;
  int warps = 4;  // a row each

  static constexpr const char* kHeader = "kernels/attention/combine_splits.h";
  static constexpr const char* kKernel = "combine_splits_kernel";
  static constexpr const char* kTypeName = "octofold::config::CombineSplitsConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("q", q);
    field("head_size", head_size);
    field("warps", warps);
  }
  friend constexpr bool operator==(const CombineSplitsConfig&,
                                   const CombineSplitsConfig&) = default;

  constexpr int threads() const { return 32 * warps; }
  constexpr const char* invalid_reason() const {
    if (warps < 1 || warps > 32) return "a block has to have 1 to 32 warps";
    return nullptr;
  }
};

}  // namespace octofold::config
