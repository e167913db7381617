// The configuration of the kernel for wide latents on Hopper, and what lies in shared memory.
#pragma once

#include "kernels/attention/config/attention.h"

namespace octofold::config {

// A latent of up to 576 numbers, up to 512 of which are values: two warpgroups multiply, for the
// same 64 rows, and one more decodes keys for them. Each has the sums of half of the values.
struct WarpgroupLatentConfig {
  AttentionForm form{};
  int keys = 64;  // of a stage
  int stages = 2;

  static constexpr const char* kHeader = "kernels/attention/warpgroup_latent.h";
  static constexpr const char* kKernel = "warpgroup_latent_kernel";
  static constexpr const char* kTypeName = "octofold::config::WarpgroupLatentConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("keys", keys);
    field("stages", stages);
  }
  friend constexpr bool operator==(const WarpgroupLatentConfig&,
                                   const WarpgroupLatentConfig&) = default;

  constexpr DType type() const { return form.q; }  // what is multiplied
  static constexpr bool kHasValues = false;        // apart from keys
  static constexpr int kPanel = 64;                // numbers of a row that lie together
  static constexpr int kPanelRow = 2 * kPanel;     // bytes, under the 128-byte swizzle

  static constexpr int rows() { return 64; }
  static constexpr int producer_threads() { return 128; }
  static constexpr int threads() { return 256 + producer_threads(); }
  static constexpr bool stays() { return true; }  // a block goes on with rows until all are done
  constexpr int panels() const { return ceil_divide(form.head_size, kPanel); }
  // Columns of values whose sums a warpgroup has.
  constexpr int columns() const { return round_up(form.value_size, 2 * kPanel) / 2; }
  constexpr bool has_scales() const { return form.k_scales || form.v_scales; }

  // Registers of a thread of the warpgroup that has scores, of the other one that multiplies, and
  // of the one that decodes: together no more than at the start, 168 each.
  static constexpr int scorer_registers() { return 208; }
  static constexpr int summer_registers() { return 176; }
  static constexpr int producer_registers() { return 120; }

  // Shared memory: queries, by panels; stages, by panels; weights, a panel; what rescales each
  // row's sums, or at the end its inverse and unit, and with parts what else is known of it; scales
  // of keys and values of each stage; barriers.
  static constexpr int query_panel_bytes() { return rows() * kPanelRow; }
  constexpr int panel_bytes() const { return keys * kPanelRow; }
  constexpr int stage_bytes() const { return panels() * panel_bytes(); }
  constexpr int stages_offset() const { return panels() * query_panel_bytes(); }
  constexpr int weights_offset() const { return stages_offset() + stages * stage_bytes(); }
  constexpr int factors_offset() const { return weights_offset() + rows() * kPanelRow; }
  constexpr int factor_bytes() const { return form.adds_parts() ? 16 : 8; }  // of a row
  constexpr int scales_offset() const { return factors_offset() + factor_bytes() * rows(); }
  constexpr int barriers_offset() const {
    return scales_offset() + (has_scales() ? stages * 8 * keys : 0);
  }
  constexpr int shared_bytes() const { return barriers_offset() + 8 * (2 * stages + 2); }

  constexpr const char* invalid_reason() const {
    if (form.invalid_reason() != nullptr) return form.invalid_reason();
    if (!form.shared_latent) return "values have to be numbers of the keys";
    if (form.copy_bytes != 16) return "keys have to be copied by 16 bytes";
    if (2 * columns() > panels() * kPanel) return "a key has to have all columns of both halves";
    if (keys != kPanel) return "weights of a stage have to be a panel";
    if (stages < 2) return "the ring has to have at least two stages";
    if (form.part_keys % keys != 0) return kPartReason;
    return nullptr;
  }
};

}  // namespace octofold::config
