// Keys and values on their way to products of warpgroups: one warpgroup copies codes to shared
// memory and decodes them into the stages of a ring, keys and values in turns. A thread decodes what
// it has copied itself.
#pragma once

#include "kernels/attention/keys.h"
#include "kernels/attention/warpgroup_memory.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/tma.h"
#include "kernels/shared/ring_position.h"

namespace octofold::attention {

template <WarpgroupQueriesConfig kConfig>
class WarpgroupTiles {
  static constexpr AttentionForm kForm = kConfig.form;
  static constexpr int kKeys = kConfig.keys;
  static constexpr int kThreads = 128;
  static constexpr int kPieceCodes = 16;
  static constexpr int kPieces = kConfig.numbers() / kPieceCodes;  // of a row
  enum Side { kKeySide, kValueSide };

 public:
  __device__ WarpgroupTiles(const AttentionParams& params, const WarpgroupMemory<kConfig>& memory)
      : params_(params), memory_(memory) {}

  __device__ void run() {
    bool follows = false;  // values behind those that have arrived
    for (WorkWalk<kConfig.rows()> walk(params_); walk.has_work(); walk.advance()) {
      const Rows rows = walk.rows();
      if (rows.first >= rows.end) continue;
      int first_key;
      const int keys = count_keys<kForm.layout>(params_, rows.sequence, first_key);
      const Range seen = sight_of<kConfig.rows()>(params_, rows, keys).any;
      const Range tiles = tiles_of<kKeys>(params_, rows, seen);
      const SideRows<kForm.layout> key_rows(params_, params_.k, rows.sequence, first_key,
                                            rows.key_head);
      const SideRows<kForm.layout> value_rows(params_, params_.v, rows.sequence, first_key,
                                              rows.key_head);
#pragma unroll 1
      for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        copy<kKeySide>(key_rows, rows.sequence, tile * kKeys, seen);
        if (follows) decode<kValueSide, 1>();
        copy<kValueSide>(value_rows, rows.sequence, tile * kKeys, seen);
        decode<kKeySide, 1>();
        follows = true;
      }
    }
    if (follows) decode<kValueSide, 0>();
  }

 private:
  static __device__ int thread() { return static_cast<int>(ptx::opaque(threadIdx.x % kThreads)); }

  // Starts the copies of keys from `first` on; zeros where no row sees a key.
  template <Side kSide>
  __device__ void copy(const SideRows<kForm.layout>& rows, int sequence, int first, Range seen) {
    constexpr int kUnit = kForm.unit();
    const auto is_seen = [&](int key) { return key >= seen.begin && key < seen.end; };
    const auto page_of_seen = [&](int key) {
      return is_seen(key) ? page_of<kForm.layout>(params_, sequence, key) : 0;
    };
    const unsigned codes = memory_.codes(kSide);
#pragma unroll 2
    for (int index = thread(); index < kKeys * kPieces; index += kThreads) {
      const int key = first + index / kPieces;
      const unsigned char* const row = rows.row(key, page_of_seen(key));
#pragma unroll
      for (int i = 0; i < kPieceCodes; i += kUnit) {
        const int at = index % kPieces * kPieceCodes + i;
        copy_codes<kForm.copy_bytes>(codes + static_cast<unsigned>(index * kPieceCodes + i),
                                     row + at, is_seen(key) && at < kForm.head_size);
      }
    }
    if constexpr (kSide == kKeySide ? kForm.k_scales : kForm.v_scales) {
      const int key = first + thread();
      scale_[kSide] = thread() < kKeys && is_seen(key) ? *rows.scale(key, page_of_seen(key)) : 0;
    }
    ptx::copies_commit();
  }

  // What has arrived of this thread's copies, to the next stage. kPending: copies since.
  template <Side kSide, int kPending>
  __device__ void decode() {
    const int stage = position_.stage;
    ptx::mbarrier_wait(memory_.empty(stage), position_.parity ^ 1);
    ptx::copies_wait<kPending>();
    const unsigned codes = memory_.codes(kSide), panels = memory_.stage(stage);
#pragma unroll 2
    for (int index = thread(); index < kKeys * kPieces; index += kThreads) {
      decode_piece<kSide == kKeySide ? kForm.k : kForm.v>(
          codes + static_cast<unsigned>(index * kPieceCodes), panels,
          static_cast<unsigned>(index / kPieces), static_cast<unsigned>(index % kPieces));
    }
    if constexpr (kSide == kKeySide ? kForm.k_scales : kForm.v_scales) {
      if (thread() < kKeys) {
        ptx::store_shared_word(memory_.scales(stage) + static_cast<unsigned>(4 * thread()),
                               __float_as_uint(scale_[kSide]));
      }
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(memory_.full(stage));
    position_.advance();
  }

  // 16 codes to two units of 16 bytes. Of eight neighbouring lanes four store the second one first:
  // so they reach all banks.
  template <DType kFp8>
  static __device__ void decode_piece(unsigned codes, unsigned panels, unsigned row,
                                      unsigned piece) {
    unsigned words[4], units[2][4];
    ptx::load_shared_words(codes, words);
    const bool second_first = piece & 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned first = numeric::pair_in_units<kFp8, kForm.q>(words[i / 2], i % 2);
      const unsigned second = numeric::pair_in_units<kFp8, kForm.q>(words[2 + i / 2], i % 2);
      units[0][i] = second_first ? second : first;
      units[1][i] = second_first ? first : second;
    }
    const unsigned panel = panels + piece / 4 * kConfig.panel_bytes();
    const unsigned unit = piece % 4 * 2 + (second_first ? 1 : 0);
    ptx::store_shared_words(panel + swizzled(row, unit), units[0]);
    ptx::store_shared_words(panel + swizzled(row, unit ^ 1), units[1]);
  }

  const AttentionParams& params_;
  const WarpgroupMemory<kConfig>& memory_;
  config::RingPosition<kConfig.stages> position_;
  float scale_[2];  // of this thread's key, on its way
};

}  // namespace octofold::attention
