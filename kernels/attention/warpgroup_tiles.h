// Keys and values on their way to products of warpgroups: one warpgroup loads codes into registers
// and decodes them into the stages of a ring, keys and values in turns. While a side is decoded the
// codes of the other one come: each piece takes the registers of the piece before it.
#pragma once

#include "kernels/attention/keys.h"
#include "kernels/attention/warpgroup_memory.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/global_memory.h"
#include "kernels/ptx/tma.h"
#include "kernels/shared/ring_position.h"

namespace octofold::attention {

// Of a latent, whose values are numbers of its keys, there are keys only.
template <auto kConfig, typename Memory>
class WarpgroupTiles {
  static constexpr AttentionForm kForm = kConfig.form;
  static constexpr int kKeys = kConfig.keys;
  static constexpr int kThreads = kConfig.producer_threads();
  static constexpr int kPieceCodes = 16;
  // At a time the threads have 32 keys of a panel. Eight neighbours have two keys, whose units of
  // 16 bytes reach all banks.
  static constexpr int kThreadsOfKey = 4, kKeysAtOnce = kThreads / kThreadsOfKey;
  static constexpr int kTurns = config::ceil_divide(kKeys, kKeysAtOnce);
  static constexpr int kPanels = kConfig.panels();
  using Codes = unsigned[kPanels][4];  // of one key
  using SideRows = attention::SideRows<kForm.layout>;

 public:
  __device__ WarpgroupTiles(const AttentionParams& params, const Memory& memory)
      : params_(params),
        memory_(memory),
        key_(static_cast<int>(threadIdx.x % kThreads) / kThreadsOfKey),
        code_(static_cast<int>(threadIdx.x) % kThreadsOfKey * kPieceCodes) {}

  __device__ void run() {
    for (WorkWalk<kConfig.rows()> walk(params_); walk.has_work(); walk.advance()) {
      const Rows rows = walk.rows();
      if (rows.first < rows.end) fill_stages(rows);
    }
  }

 private:
  __device__ void fill_stages(const Rows& rows) {
    int first_key;
    const int keys = count_keys<kForm.layout>(params_, rows.sequence, first_key);
    seen_ = sight_of<kConfig.rows()>(params_, rows, keys).any;
    const Range tiles = tiles_of<kKeys>(params_, rows, seen_);
    if (tiles.begin >= tiles.end) return;
    sequence_ = rows.sequence;
    const SideRows key_rows(params_, params_.k, sequence_, first_key, rows.key_head);
    const SideRows value_rows(params_, params_.v, sequence_, first_key, rows.key_head);
    if constexpr (kForm.shared_latent) return fill_with_latent(tiles, key_rows, value_rows);
    Codes codes[kTurns];
    float scale;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      load(codes[turn], key_rows, tiles.begin * kKeys, turn);
    }
    load_scale<kForm.k_scales>(scale, key_rows, tiles.begin * kKeys);
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      begin_stage();
      store_scale<kForm.k_scales>(memory_.scales(position_.stage), scale);
      load_scale<kForm.v_scales>(scale, value_rows, tile * kKeys);
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        decode<kForm.k>(codes[turn], turn);
        load(codes[turn], value_rows, tile * kKeys, turn);
      }
      end_stage();
      begin_stage();
      store_scale<kForm.v_scales>(memory_.scales(position_.stage), scale);
      // Behind the last tile keys are not seen, or are not looked at.
      load_scale<kForm.k_scales>(scale, key_rows, (tile + 1) * kKeys);
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        decode<kForm.v>(codes[turn], turn);
        load(codes[turn], key_rows, (tile + 1) * kKeys, turn);
      }
      end_stage();
    }
  }

  __device__ void fill_with_latent(Range tiles, const SideRows& key_rows,
                                   const SideRows& value_rows) {
    Codes codes[kTurns];
    float k_scale, v_scale;
    const auto load_scales = [&](int tile) {
      load_scale<kForm.k_scales>(k_scale, key_rows, tile * kKeys);
      load_scale<kForm.v_scales>(v_scale, value_rows, tile * kKeys);
    };
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      load(codes[turn], key_rows, tiles.begin * kKeys, turn);
    }
    load_scales(tiles.begin);
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      begin_stage();
      store_scale<kForm.k_scales>(memory_.scales(position_.stage), k_scale);
      if constexpr (kForm.v_scales) {
        store_scale<true>(memory_.value_scales(position_.stage), v_scale);
      }
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) decode<kForm.k>(codes[turn], turn);
      end_stage();
      // Behind the last tile keys are not seen, or are not looked at.
      load_scales(tile + 1);
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        load(codes[turn], key_rows, (tile + 1) * kKeys, turn);
      }
    }
  }

  __device__ bool is_seen(int key) const { return key >= seen_.begin && key < seen_.end; }
  __device__ int page_of_seen(int key) const {
    return is_seen(key) ? page_of<kForm.layout>(params_, sequence_, key) : 0;
  }

  // This thread's codes of its key of a turn, of the tile that begins at key `first`; zeros where
  // no row sees a key.
  __device__ void load(Codes& codes, const SideRows& side, int first, int turn) {
    const int in_tile = key_ + turn * kKeysAtOnce, key = first + in_tile;
    const bool exists = is_seen(key) && (kKeys % kKeysAtOnce == 0 || in_tile < kKeys);
    const unsigned char* const row = side.row(key, page_of_seen(key)) + code_;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int at = panel * kConfig.kPanel, there = kForm.head_size - at;
      load_codes<kForm.copy_bytes>(row + at, exists && (there >= kConfig.kPanel || code_ < there),
                                   codes[panel]);
    }
  }

  template <bool kExists>
  __device__ void load_scale(float& scale, const SideRows& side, int first) {
    if constexpr (!kExists) return;
    const int in_tile = static_cast<int>(threadIdx.x % kThreads), key = first + in_tile;
    scale = in_tile < kKeys && is_seen(key) ? *side.scale(key, page_of_seen(key)) : 0;
  }
  template <bool kExists>
  static __device__ void store_scale(unsigned scales, float scale) {
    if constexpr (!kExists) return;
    const unsigned in_tile = threadIdx.x % kThreads;
    if (in_tile >= kKeys) return;
    ptx::store_shared_word(scales + 4 * in_tile, __float_as_uint(scale));
  }

  __device__ void begin_stage() const {
    ptx::mbarrier_wait(memory_.empty(position_.stage), position_.parity ^ 1);
  }
  __device__ void end_stage() {
    ptx::fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(memory_.full(position_.stage));
    position_.advance();
  }

  // 16 codes of each panel to two units of 16 bytes.
  template <DType kFp8>
  __device__ void decode(const Codes& codes, int turn) const {
    const int in_tile = key_ + turn * kKeysAtOnce;
    if (kKeys % kKeysAtOnce != 0 && in_tile >= kKeys) return;
#pragma unroll
    for (int i = 0; i < 2 * kPanels; ++i) {
      const int panel = i / 2, half = i % 2;
      unsigned unit[4];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        unit[pair] =
            numeric::pair_in_units<kFp8, kForm.q>(codes[panel][2 * half + pair / 2], pair % 2);
      }
      ptx::store_shared_words(
          memory_.stage(position_.stage) + static_cast<unsigned>(panel * kConfig.panel_bytes()) +
              swizzled(static_cast<unsigned>(in_tile), static_cast<unsigned>(code_ / 8 + half)),
          unit);
    }
  }

  const AttentionParams& params_;
  const Memory& memory_;
  const int key_;   // the thread's, of 32
  const int code_;  // the thread's, of a panel
  config::RingPosition<kConfig.stages> position_;
  // Of the rows at hand.
  int sequence_;
  Range seen_;
};

}  // namespace octofold::attention
