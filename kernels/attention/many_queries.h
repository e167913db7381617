// Attention of many queries, after FlashAttention-2 (Dao 2023, arXiv:2307.08691): bound by
// products. A warp has 32 rows of its own, 16 where a head is beyond 128, and walks over all keys
// that the block's rows see. Codes of 64 keys and values are decoded once for the block, into
// 16-bit numbers in shared memory: those of the next tile by one half of the warps while the other
// half multiplies, then the other way round, with one barrier a tile.
//
// H200, 8192 causal tokens, 32 heads on 8: predicted 75 % of 1024 products a clock, came 2119 µs
// (250 TFLOPS). Eight warps of 256 rows in place of four of 128, twice: 1928. Decoding beside
// products, in two buffers: 1912, where 10 to 15 % were predicted and 5.5 came. Operands loaded
// ahead: 0 to 1 %; queries loaded four at a time: 1 %. Scores of 64 keys with two tiles of rows
// spill 16 bytes, so they are of 32 (docs/notes/attention.md).
#pragma once

#include "kernels/attention/config/attention.h"
#include "kernels/attention/output.h"
#include "kernels/attention/softmax.h"
#include "kernels/attention/tiles.h"
#include "kernels/numeric/lanes.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/mma.h"

namespace octofold {
namespace attention {

using config::ManyQueriesConfig;

template <ManyQueriesConfig kConfig>
class ManyQueries {
  using KeyTiles = Tiles<kConfig>;
  static constexpr AttentionForm kForm = kConfig.form;
  static constexpr int kKeys = kConfig.keys;
  static constexpr int kScoreKeys = kConfig.score_keys();
  static constexpr int kTiles = kScoreKeys / 8;
  static constexpr int kKeySteps = kConfig.key_numbers() / 16;  // of 16 numbers of a row
  static constexpr int kValueSteps = kConfig.value_numbers() / 16;
  static constexpr int kRowTiles = kConfig.row_tiles;
  static constexpr unsigned kKeyBytes = kConfig.key_row_bytes();
  static constexpr unsigned kValueBytes = kConfig.value_row_bytes();

 public:
  __device__ explicit ManyQueries(const AttentionParams& params)
      : params_(params),
        rows_(rows_of_block<kConfig.rows(), kForm.row_count>(params)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        warp_row_(static_cast<int>(threadIdx.x / 32) * 16 * kRowTiles) {}

  __device__ void run() {
    if (rows_.first >= rows_.end) return;
    int first_key;
    const int keys = count_keys<kForm.layout>(params_, rows_.sequence, first_key);
    const Sight sight = sight_of<kConfig.rows()>(params_, rows_, keys);
    const ScoreFactor factor = score_factor<kForm>(params_, rows_.key_head);
    factor_ = factor.magnitude;
    const KeyTiles tiles(params_, rows_, first_key, sight.any);
    const Range all = tiles_of<kForm, kKeys>(params_, rows_, sight.any);
    for_each_part<kForm, kKeys>(rows_, all, [&](Range part) {
      if (kForm.adds_parts() && rows_.parts_before > 0) begin_part();
      walk(tiles, part, sight, factor.flips, keys);
      store();
    });
  }

 private:
  __device__ void begin_part() {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      states_[i] = {};
      clear(sums_[i]);
    }
  }

  __device__ void walk(const KeyTiles& tiles, Range part, const Sight& sight, bool flip, int keys) {
    int first = part.begin * kKeys, buffer = 0;
    const int end = part.end * kKeys;
    // Decodes the tile from `next` on, whose codes are on their way, and has those behind it come.
    const auto decode = [&](int next, int to) {
      if (next >= end) return;
      ptx::copies_wait<0>();
      tiles.decode(to);
      if (next + kKeys < end) tiles.copy(next + kKeys);
    };
    if (first < end) tiles.copy(first);
    if (!kForm.adds_parts() || rows_.parts_before == 0) {
      copy_queries<kConfig>(params_, rows_, memory_, flip);
    }
    decode(first, 0);
    __syncthreads();
    constexpr bool kBeside = kConfig.buffers == 2;
    const bool decodes_first = kBeside && threadIdx.x / 32 < kConfig.warps / 2;
#pragma unroll 1
    for (; first < end; first += kKeys) {
      const int next = kBeside ? buffer ^ 1 : 0;
      if (decodes_first) decode(first + kKeys, next);
      const bool is_masked = first < sight.all.begin || first + kKeys > sight.all.end;
#pragma unroll 1
      for (int at = 0; at < kKeys; at += kScoreKeys) add(first, at, buffer, is_masked, keys);
      if constexpr (!kBeside) __syncthreads();  // products of the numbers are done
      if (!decodes_first) decode(first + kKeys, next);
      __syncthreads();
      buffer = next;
    }
  }

  // The lane's row i of its 2 · kRowTiles.
  __device__ int row_of(int i) const {
    const int own = opaque_thread();
    return rows_.first + own / 32 * 16 * kRowTiles + 8 * i + own % 32 / 4;
  }

  // Adds kScoreKeys keys from `part` on, of the tile of keys that begins with `first_key`.
  __device__ void add(int first_key, int part, int buffer, bool is_masked, int keys) {
    float scores[kRowTiles][kTiles][4];
    multiply_keys(scores, KeyTiles::keys(buffer) + static_cast<unsigned>(part) * kKeyBytes);
    if constexpr (kForm.k_scales) {
      float key_scales[kTiles][2];
      load_scales(KeyTiles::key_scales(buffer) + 4u * part, key_scales);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) multiply_by_scales(scores[i], key_scales);
    }
    if (is_masked) mask_rows(scores, first_key + part, keys);
    float rescale[kRowTiles][2];
    bool changes = false;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      weigh(scores[i], factor_, states_[i], rescale[i]);
      if constexpr (kForm.v_scales) {
        const Range seen[2] = {seen_where(is_masked, 2 * i, keys),
                               seen_where(is_masked, 2 * i + 1, keys)};
        multiply_by_value_scales(scores[i], KeyTiles::value_scales(buffer) + 4u * part, states_[i],
                                 rescale[i], first_key + part, seen);
      }
      changes = changes || rescale[i][0] != 1 || rescale[i][1] != 1;
    }
    // Maxima soon stay as they are.
    if (numeric::max_of_lanes(changes ? 1u : 0u) != 0) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) rescale_sums(sums_[i], rescale[i]);
    }
    multiply_values(scores, KeyTiles::values(buffer) + static_cast<unsigned>(part) * kValueBytes);
  }

  __device__ void mask_rows(float (&scores)[kRowTiles][kTiles][4], int first_key, int keys) const {
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      mask(scores[i / 2], i % 2, first_key, seen_by_row(params_, rows_, row_of(i), keys));
    }
  }

  // The keys that the lane's row i sees, or all keys if nothing is masked.
  __device__ Range seen_where(bool is_masked, int i, int keys) const {
    if (!is_masked) return {0, keys};
    return seen_by_row(params_, rows_, row_of(i), keys);
  }

  // Operands of products over 16 numbers of each row.
  struct KeyOperands {
    unsigned a[kRowTiles][4];
    unsigned b[kTiles / 2][4];
  };

  __device__ void multiply_keys(float (&scores)[kRowTiles][kTiles][4], unsigned keys) const {
    const unsigned queries =
        row_first<kKeyBytes>(memory_ + static_cast<unsigned>(warp_row_) * kKeyBytes);
    const auto load = [&](int step, KeyOperands& operands) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        ptx::load_matrices(queries + static_cast<unsigned>(16 * i) * kKeyBytes + 32u * step,
                           operands.a[i]);
      }
#pragma unroll
      for (int i = 0; i < kTiles / 2; ++i) {
        ptx::load_matrices(
            number_first<kKeyBytes>(keys) + static_cast<unsigned>(16 * i) * kKeyBytes + 32u * step,
            operands.b[i]);
      }
    };
    // The next ones are on their way while these are multiplied.
    KeyOperands operands[2];
    load(0, operands[0]);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      if (step + 1 < kKeySteps) load(step + 1, operands[(step + 1) % 2]);
      const KeyOperands& own = operands[step % 2];
#pragma unroll
      for (int i = 0; i < kTiles * kRowTiles; ++i) {
        const int tile = i / kRowTiles, row = i % kRowTiles;
        const unsigned pair[2] = {own.b[tile / 2][tile % 2 * 2], own.b[tile / 2][tile % 2 * 2 + 1]};
        if (step == 0) {
          ptx::multiply<kForm.q>(scores[row][tile], own.a[row], pair);
        } else {
          ptx::multiply_add<kForm.q>(scores[row][tile], own.a[row], pair);
        }
      }
    }
  }

  __device__ void multiply_values(const float (&weights)[kRowTiles][kTiles][4], unsigned values) {
#pragma unroll
    for (int step = 0; step < kScoreKeys / 16; ++step) {
      unsigned a[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) weights_of<kForm.q>(weights[i], step, a[i]);
#pragma unroll
      for (int two = 0; two < kValueSteps; ++two) {
        unsigned b[4];
        ptx::load_matrices_transposed(row_first<kValueBytes>(values) +
                                          static_cast<unsigned>(16 * step) * kValueBytes +
                                          32u * two,
                                      b);
        const unsigned tiles[2][2] = {{b[0], b[1]}, {b[2], b[3]}};
#pragma unroll
        for (int i = 0; i < 2 * kRowTiles; ++i) {
          ptx::multiply_add<kForm.q>(sums_[i / 2][2 * two + i % 2], a[i / 2], tiles[i % 2]);
        }
      }
    }
  }

  __device__ void store() {
    const float v_factor = factor_of<kForm.v, kForm.v_scales>(params_.v, rows_.key_head);
    float sums_of_weights[2 * kRowTiles];
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      sums_of_weights[i] = sum_of_quad(states_[i / 2].sum[i % 2]);
    }
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const RowState<kForm>& state = states_[i / 2];
      const float sum = sums_of_weights[i], in_units = __fmul_rn(state.unit(i % 2), v_factor);
      const int row = row_of(i), dim = lane_ % 4 * 2;
      if (row >= rows_.end) continue;
      const RowEnd<kForm> row_end(params_, rows_, row,
                                  state_of_row(state.maximum[i % 2], factor_, sum));
#pragma unroll
      for (int tile = 0; tile < 2 * kValueSteps; ++tile) {
        if (8 * tile >= kForm.value_size) continue;
        const float (&sums)[4] = sums_[i / 2][tile];
        store_pair<kForm>(params_, rows_, row, 8 * tile + dim, __fmul_rn(sums[i % 2 * 2], in_units),
                          __fmul_rn(sums[i % 2 * 2 + 1], in_units), row_end);
      }
      if (dim == 0) store_state<kForm>(params_, rows_, row, row_end);
    }
  }

  const AttentionParams& params_;
  Rows rows_;
  const int lane_;
  const int warp_row_;  // the warp's first row, of the block's
  const unsigned memory_ = ptx::dynamic_shared_memory();
  float factor_ = 1;
  float sums_[kRowTiles][2 * kValueSteps][4] = {};
  RowState<kForm> states_[kRowTiles];
};

}  // namespace attention

template <config::ManyQueriesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    many_queries_kernel(const __grid_constant__ config::AttentionParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  attention::ManyQueries<kConfig>(params).run();
}

}  // namespace octofold
