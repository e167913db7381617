// The configuration of the kernel for heads whose sums a warp cannot hold.
#pragma once

#include "kernels/attention/config/attention.h"

namespace octofold::config {

// Wide heads: all warps have the same rows, and each the sums of some columns of values. Scores of
// a tile of keys are dealt out to them by rows, keys and numbers of a row.
struct WideHeadsConfig {
  AttentionForm form{};
  int warps = 8;
  int row_tiles = 4;  // of the block, 16 rows each
  int keys = 64;      // at a time
  int parts = 2;      // of the numbers of a row, whose products different warps have
  int buffers = 1;    // of numbers: with two the next keys are decoded beside the softmax
  bool ahead = true;  // codes of the next keys are on their way meanwhile

  static constexpr const char* kHeader = "kernels/attention/wide_heads.h";
  static constexpr const char* kKernel = "wide_heads_kernel";
  static constexpr const char* kTypeName = "octofold::config::WideHeadsConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("warps", warps);
    field("row_tiles", row_tiles);
    field("keys", keys);
    field("parts", parts);
    field("buffers", buffers);
    field("ahead", ahead);
  }
  friend constexpr bool operator==(const WideHeadsConfig&, const WideHeadsConfig&) = default;

  constexpr int rows() const { return 16 * row_tiles; }
  constexpr int threads() const { return 32 * warps; }
  static constexpr bool stays() { return false; }

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
  constexpr int code_bytes() const {
    return key_numbers() > value_numbers() ? key_numbers() : value_numbers();
  }
  // 16 codes each: all of a tile, or one for each thread.
  constexpr int code_pieces() const { return ahead ? keys * code_bytes() / 16 : threads(); }
  constexpr bool has_scales() const { return form.k_scales || form.v_scales; }

  // A warp's work: rows and keys whose scores it has, over its part of the numbers; columns of
  // values, 16 at a time.
  constexpr int score_rows() const { return row_tiles == 1 ? 16 : 32; }
  constexpr int row_groups() const { return rows() / score_rows(); }
  constexpr int key_groups() const { return warps / (parts * row_groups()); }
  constexpr int score_keys() const { return keys / key_groups(); }
  constexpr int key_steps() const { return ceil_divide(key_numbers() / 16, parts); }
  constexpr int value_steps() const { return ceil_divide(value_numbers() / 16, warps); }
  // Lanes that share a row of scores in the softmax, each with pairs of keys.
  constexpr int row_lanes() const { return threads() / rows(); }

  // Shared memory: queries; keys and values as 16-bit numbers, of each buffer; codes of those that
  // arrive; scales of keys and values, of those that arrive, then of each buffer; scores of each
  // part; weights; what rescales each row's sums.
  constexpr int numbers_offset() const { return rows() * key_row_bytes(); }
  constexpr int buffer_bytes() const {
    return keys * (key_row_bytes() + (form.shared_latent ? 0 : value_row_bytes()));
  }
  constexpr int codes_offset() const { return numbers_offset() + buffers * buffer_bytes(); }
  constexpr int scales_offset() const { return codes_offset() + sides() * 16 * code_pieces(); }
  constexpr int scores_offset() const {
    return scales_offset() + (has_scales() ? (1 + buffers) * 8 * keys : 0);
  }
  // Four rows that follow one another are in different banks.
  constexpr int score_row_bytes() const { return 4 * (keys + 8); }
  constexpr int weights_offset() const {
    return scores_offset() + parts * rows() * score_row_bytes();
  }
  constexpr int weight_row_bytes() const { return 2 * keys + 16; }
  constexpr int factors_offset() const { return weights_offset() + rows() * weight_row_bytes(); }
  constexpr int shared_bytes() const { return factors_offset() + 4 * rows(); }

  constexpr const char* invalid_reason() const {
    if (form.invalid_reason() != nullptr) return form.invalid_reason();
    if (warps != 4 && warps != 8) return "a block has to have 4 or 8 warps";
    if (row_tiles != 1 && row_tiles != 2 && row_tiles != 4)
      return "a block has to have 1, 2 or 4 tiles of rows";
    if (buffers != 1 && buffers != 2)
      return "a block has to have one or two buffers of decoded keys and values";
    if (keys != 16 && keys != 32 && keys != 64) return "keys has to be 16, 32 or 64";
    if (parts < 1 || warps % (parts * row_groups()) != 0)
      return "warps have to be a multiple of the parts of scores that they share";
    if (keys % key_groups() != 0 || score_keys() % 16 != 0 || score_keys() > 32)
      return "a warp has to have scores of 16 or 32 keys";
    if (keys % (2 * row_lanes()) != 0) return "a lane has to have pairs of keys in the softmax";
    if (row_tiles * value_steps() > 16) return "a warp has sums of 128 numbers to a lane at most";
    if (form.part_keys % keys != 0) return kPartReason;
    return nullptr;
  }
};

}  // namespace octofold::config
