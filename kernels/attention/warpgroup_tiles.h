// Keys and values on their way to products of warpgroups: one warpgroup loads codes into registers
// and decodes them into the stages of a ring, keys and values in turns; keys of FP8 scores stay
// codes. As soon as those of a tile are decoded, and a fence has made them visible to products,
// those of the next one are on their way to the same registers: a fence waits for loads too, so it
// comes before them.
#pragma once

#include "kernels/attention/keys.h"
#include "kernels/attention/warpgroup_memory.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/global_memory.h"
#include "kernels/ptx/tma.h"
#include "kernels/shared/stages.h"

namespace octofold::attention {

// A latent, whose values are numbers of its keys, has tiles of keys only.
template <auto kConfig, typename Memory>
class WarpgroupTiles {
  static constexpr AttentionForm kForm = kConfig.form;
  static constexpr int kKeys = kConfig.keys;
  static constexpr int kThreads = 128;
  static constexpr int kPieceCodes = 16;

  // A tile of keys, or of values: what it holds, and how the threads share it.
  struct TileForm {
    DType fp8;
    int size;  // codes of a key
    bool has_scales;
    bool as_codes = false;  // which become numbers, or stay codes

    constexpr int all_panels() const { return config::ceil_divide(size, kConfig.kPanel); }
    // At a time the threads have 32 keys of a panel, or 16 of two where that leaves none idle.
    // Eight neighbours have two keys of a panel, whose units of 16 bytes reach all banks.
    constexpr int panels_at_once() const {
      return all_panels() % 2 == 0 && kKeys % 32 != 0 ? 2 : 1;
    }
    constexpr int keys_at_once() const { return kThreads / 4 / panels_at_once(); }
    constexpr int turns() const { return config::ceil_divide(kKeys, keys_at_once()); }
    constexpr int panels() const { return all_panels() / panels_at_once(); }  // of a thread
  };

  // This thread's part of a tile.
  template <TileForm kOf>
  struct Tile {
    unsigned codes[kOf.turns()][kOf.panels()][4];
    float scale;  // of another key than the codes
  };
  using SideRows = attention::SideRows<kForm.layout>;

 public:
  __device__ WarpgroupTiles(const AttentionParams& params, const Memory& memory)
      : params_(params), memory_(memory) {}

  __device__ void run() {
    WorkWalk<kConfig.rows(), kForm.row_count> walk(params_);
    for (Rows rows; walk.next(rows);) fill_stages(rows);
  }

 private:
  __device__ void fill_stages(const Rows& rows) {
    int first_key;
    const int keys = count_keys<kForm.layout>(params_, rows.sequence, first_key);
    seen_ = sight_of<kConfig.rows()>(params_, rows, keys).any;
    const Range tiles = tiles_of<kForm, kKeys>(params_, rows, seen_);
    if (tiles.begin >= tiles.end) return;
    sequence_ = rows.sequence;
    const SideRows key_rows(params_, params_.k, sequence_, first_key, rows.key_head);
    const SideRows value_rows(params_, params_.v, sequence_, first_key, rows.key_head);
    if constexpr (kConfig.kHasValues) {
      fill_in_turns(tiles, key_rows, value_rows);
    } else {
      fill_with_latent(tiles, key_rows, value_rows);
    }
  }

  __device__ void fill_in_turns(Range tiles, const SideRows& key_rows, const SideRows& value_rows) {
    Tile<TileForm{kForm.k, kForm.head_size, kForm.k_scales, kConfig.fp8_scores}> own_keys;
    Tile<TileForm{kForm.v, kForm.value_size, kForm.v_scales}> own_values;
    int first = tiles.begin * kKeys;
    const int end = tiles.end * kKeys;
    load(own_keys, key_rows, first);
    load(own_values, value_rows, first);
#pragma unroll 1
    for (; first < end; first += kKeys) {
      fill_stage(own_keys, memory_.keys(position_.stage));
      load(own_keys, key_rows, first + kKeys);
      fill_stage(own_values, memory_.values(position_.stage));
      load(own_values, value_rows, first + kKeys);
    }
  }

  __device__ void fill_with_latent(Range tiles, const SideRows& key_rows,
                                   const SideRows& value_rows) {
    constexpr TileForm kOf{kForm.k, kForm.head_size, kForm.k_scales};
    Tile<kOf> own;
    float value_scale;
    int first = tiles.begin * kKeys;
    const int end = tiles.end * kKeys;
    load(own, key_rows, first);
    load_scale<kForm.v_scales>(value_scale, value_rows, first);
#pragma unroll 1
    for (; first < end; first += kKeys) {
      const int stage = position_.stage;
      ptx::mbarrier_wait(memory_.empty(stage), position_.parity ^ 1);
      store(own, memory_.keys(stage), place<kOf>());
      if constexpr (kForm.k_scales) store_scale(memory_.scales(stage), own.scale);
      if constexpr (kForm.v_scales) store_scale(memory_.value_scales(stage), value_scale);
      end_stage(stage);
      load(own, key_rows, first + kKeys);
      load_scale<kForm.v_scales>(value_scale, value_rows, first + kKeys);
    }
  }

  // The thread's, of those at a time; worked out where it is used, rather than kept in registers.
  struct Place {
    int key, panel;
    int code;  // of the panel
  };
  template <TileForm kOf>
  static __device__ Place place() {
    const auto thread = static_cast<int>(ptx::opaque(threadIdx.x % kThreads));
    int key = thread / 4 % 2 + thread / (8 * kOf.panels_at_once()) * 2;
    // The two keys of eight neighbours are four apart rather than next to each other: a row of
    // codes has half the units.
    if constexpr (kOf.as_codes) key ^= ((key ^ key >> 2) & 1) * 5;
    return {key, thread / 8 % kOf.panels_at_once(), thread % 4 * kPieceCodes};
  }

  __device__ bool is_seen(int key) const { return key >= seen_.begin && key < seen_.end; }
  // The nearest one that is seen, or at least exists: its scale and page are loaded without a
  // branch.
  __device__ int nearest_seen(int key) const {
    return held_to(key, min(seen_.begin, seen_.end - 1), seen_.end - 1);
  }
  __device__ int page_near(int key) const {
    return page_of<kForm.layout>(params_, sequence_, nearest_seen(key));
  }

  // Zeros where no row sees a key.
  template <TileForm kOf>
  __device__ void load(Tile<kOf>& tile, const SideRows& side, int first) {
    load_scale<kOf.has_scales>(tile.scale, side, first);
    const Place own = place<kOf>();
#pragma unroll
    for (int turn = 0; turn < kOf.turns(); ++turn) {
      const int in_tile = own.key + turn * kOf.keys_at_once(), key = first + in_tile;
      const bool exists = is_seen(key) && (kKeys % kOf.keys_at_once() == 0 || in_tile < kKeys);
      const int code = own.panel * kConfig.kPanel + own.code;
      const unsigned char* const row = side.row(key, page_near(key)) + code;
#pragma unroll
      for (int panel = 0; panel < kOf.panels(); ++panel) {
        constexpr int kAtOnce = kOf.panels_at_once() * kConfig.kPanel;
        const int at = panel * kAtOnce, there = kOf.size - at;
        const int exist = there >= kAtOnce ? kPieceCodes : there - code;
        load_codes<kForm.copy_bytes>(row + at, exists ? exist : 0, tile.codes[turn][panel]);
      }
    }
  }

  template <bool kExists>
  __device__ void load_scale(float& scale, const SideRows& side, int first) {
    if constexpr (!kExists) return;
    const int key = nearest_seen(first + static_cast<int>(threadIdx.x % kThreads));
    scale = *side.scale(key, page_near(key));
  }

  // Fills the stage at hand, whose panels are at `panels`, with a tile.
  template <TileForm kOf>
  __device__ void fill_stage(const Tile<kOf>& tile, unsigned panels) {
    const int stage = position_.stage;
    const Place own = place<kOf>();
    ptx::mbarrier_wait(memory_.empty(stage), position_.parity ^ 1);
    store(tile, panels, own);
    if constexpr (kOf.has_scales) store_scale(memory_.scales(stage), tile.scale);
    end_stage(stage);
  }
  __device__ void end_stage(int stage) {
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive_for_warp(memory_.full(stage));
    position_.advance();
  }
  static __device__ void store_scale(unsigned scales, float scale) {
    const unsigned in_tile = threadIdx.x % kThreads;
    if (in_tile < unsigned{kKeys}) {
      ptx::store_shared_word(scales + 4 * in_tile, __float_as_uint(scale));
    }
  }

  template <TileForm kOf>
  static __device__ void store(const Tile<kOf>& tile, unsigned panels, const Place& own) {
#pragma unroll
    for (int turn = 0; turn < kOf.turns(); ++turn) {
      const int in_tile = own.key + turn * kOf.keys_at_once();
      if (kKeys % kOf.keys_at_once() != 0 && in_tile >= kKeys) break;
#pragma unroll
      for (int i = 0; i < kOf.panels(); ++i) {
        const auto row = static_cast<unsigned>(in_tile);
        const int panel = i * kOf.panels_at_once() + own.panel;
        if constexpr (kOf.as_codes) {
          const auto unit = static_cast<unsigned>(panel * kConfig.kPanel + own.code) / kPieceCodes;
          ptx::store_shared_words(panels + swizzled(row, unit), tile.codes[turn][i]);
        } else {
          decode_piece<kOf.fp8>(tile.codes[turn][i],
                                panels + static_cast<unsigned>(panel * kConfig.panel_bytes()), row,
                                static_cast<unsigned>(own.code / 8));
        }
      }
    }
  }

  // 16 codes of a key to two units of 16 bytes of its row in a panel.
  template <DType kFp8>
  static __device__ void decode_piece(const unsigned (&codes)[4], unsigned panel, unsigned row,
                                      unsigned first_unit) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned unit[4];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        unit[pair] =
            numeric::pair_in_units<kFp8, kConfig.type()>(codes[2 * half + pair / 2], pair % 2);
      }
      ptx::store_shared_words(panel + swizzled(row, first_unit + static_cast<unsigned>(half)),
                              unit);
    }
  }

  const AttentionParams& params_;
  const Memory& memory_;
  config::RingPosition<kConfig.stages> position_;
  // The sequence of the rows at hand, and the keys that any of them sees.
  int sequence_;
  Range seen_;
};

}  // namespace octofold::attention
