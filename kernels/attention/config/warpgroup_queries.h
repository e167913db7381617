// Attention of many queries on Hopper: its kernel's configuration, and what lies in shared memory.
#pragma once

#include "kernels/attention/config/attention.h"

namespace octofold::config {

// Many queries by products of warpgroups, each with 64 rows of its own; one warpgroup more decodes
// keys and values for them.
struct WarpgroupQueriesConfig {
  AttentionForm form{};
  int warpgroups = 3;       // that multiply
  int keys = 64;            // of a stage
  int stages = 8;           // of keys and of values, in turns
  bool fp8_scores = false;  // queries become e4m3 codes, and are multiplied with keys' own

  static constexpr const char* kHeader = "kernels/attention/warpgroup_queries.h";
  static constexpr const char* kKernel = "warpgroup_queries_kernel";
  static constexpr const char* kTypeName = "octofold::config::WarpgroupQueriesConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("warpgroups", warpgroups);
    field("keys", keys);
    field("stages", stages);
    field("fp8_scores", fp8_scores);
  }
  friend constexpr bool operator==(const WarpgroupQueriesConfig&,
                                   const WarpgroupQueriesConfig&) = default;

  // The type that is multiplied except for FP8 scores: it holds all codes, and a pair of them takes
  // one instruction.
  static constexpr DType kType = DType::kFloat16;
  static constexpr DType type() { return kType; }
  static constexpr bool kHasValues = true;      // apart from keys
  static constexpr int kPanel = 64;             // numbers of a row that lie together
  static constexpr int kPanelRow = 2 * kPanel;  // bytes, under the 128-byte swizzle
  // Codes whose FP8 products a tensor core adds up at most: a scale block's, the first level of
  // sums, and as many as a row of a panel has bytes.
  static constexpr int kMostOfChain = kScaleBlock;

  // A block goes on until all rows are done.
  static constexpr bool stays() { return true; }
  constexpr int rows() const { return 64 * warpgroups; }
  static constexpr int producer_threads() { return 128; }
  constexpr int threads() const { return 128 * warpgroups + producer_threads(); }
  // Numbers of a row of queries or keys, and of values; zeros fill it up.
  constexpr int key_numbers() const { return round_up(form.head_size, 16); }
  constexpr int value_numbers() const { return round_up(form.value_size, 16); }
  constexpr int key_panels() const { return ceil_divide(form.head_size, kPanel); }
  constexpr int value_panels() const { return ceil_divide(form.value_size, kPanel); }
  constexpr bool has_scales() const { return form.k_scales || form.v_scales; }
  // 32 bytes of a row each: numbers, or codes.
  constexpr int key_steps() const { return ceil_divide(form.head_size, fp8_scores ? 32 : 16); }

  // Registers of a thread: together no more than at the start (kernels/sm90/config/resources.h).
  // The producers hold codes of two stages, the consumers sums, scores and weights; those with sums
  // of 256 numbers need what else producers have.
  constexpr int producer_registers() const {
    return warpgroups == 3 ? 80 : value_panels() < 4 ? 104 : 88;
  }
  constexpr int consumer_registers() const {
    return warpgroups == 3 ? (4 * 128 - producer_registers()) / 3
                           : (3 * 168 - producer_registers()) / 2;
  }

  // Shared memory: queries, by panels; stages, by panels, in pairs of one with keys and one with
  // values; scales of each stage; what rows of queries were divided by; barriers.
  constexpr int query_panel_bytes() const { return rows() * kPanelRow; }
  constexpr int panel_bytes() const { return keys * kPanelRow; }
  constexpr int key_stage_bytes() const { return key_panels() * panel_bytes(); }
  constexpr int pair_bytes() const { return key_stage_bytes() + value_panels() * panel_bytes(); }
  constexpr int stages_offset() const { return key_panels() * query_panel_bytes(); }
  constexpr int scales_offset() const { return stages_offset() + stages / 2 * pair_bytes(); }
  constexpr int query_units_offset() const {
    return scales_offset() + (has_scales() ? stages * 4 * keys : 0);
  }
  constexpr int barriers_offset() const { return query_units_offset() + 4 * rows(); }
  constexpr int shared_bytes() const { return barriers_offset() + 2 * 8 * stages; }

  constexpr const char* invalid_reason() const {
    if (form.invalid_reason() != nullptr) return form.invalid_reason();
    if (warpgroups < 2 || warpgroups > 3) return "two or three warpgroups have to multiply";
    if (keys < 16 || keys > 128 || keys % 16 != 0)
      return "keys has to be a multiple of 16, at most 128";
    if (form.value_size > 256) return "registers hold sums of 256 numbers of a row at most";
    if (stages < 4 || stages % 2 != 0) return "the ring has to have two pairs of stages or more";
    if (form.part_keys % keys != 0) return kPartReason;
    // Tensor cores add products of FP8 with fewer bits than FP32 has.
    if (fp8_scores && form.head_size > kMostOfChain)
      return "FP8 scores have to be one chain of products, of 128 numbers at most";
    return nullptr;
  }
};

}  // namespace octofold::config
