// 64 rows of a warpgroup: products with all keys that they see, the softmax, products with values.
#pragma once

#include "kernels/attention/keys.h"
#include "kernels/attention/output.h"
#include "kernels/attention/softmax.h"
#include "kernels/attention/warpgroup_memory.h"
#include "kernels/numeric/lanes.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/ptx/wgmma_half.h"
#include "kernels/shared/ring_position.h"

namespace octofold::attention {

template <WarpgroupQueriesConfig kConfig>
class WarpgroupRows {
  static constexpr AttentionForm kForm = kConfig.form;
  static constexpr int kKeys = kConfig.keys;
  static constexpr int kTiles = kKeys / 8;
  static constexpr int kNumbers = kConfig.numbers();
  static constexpr int kThreads = 128;
  using Position = config::RingPosition<kConfig.stages>;

 public:
  // The product of keys and the rows' queries, a stage of the ring for each tile.
  __device__ WarpgroupRows(const AttentionParams& params, const WarpgroupMemory<kConfig>& memory,
                           const Rows& rows, int warpgroup)
      : params_(params), memory_(memory), rows_(rows), warpgroup_(warpgroup) {}

  __device__ void run(Position& position) {
    int first_key;
    const int keys = count_keys<kForm.layout>(params_, rows_.sequence, first_key);
    const Sight sight = sight_of<kConfig.rows()>(params_, rows_, keys);
    const Range tiles = tiles_of<kKeys>(params_, rows_, sight.any);
    const float k_factor =
        factor_of<kForm.k, kForm.k_scales>(params_.k, rows_.key_head) * params_.scale;
    // Scores are compared before they are multiplied, so the sign is the queries'.
    factor_ = k_factor == 0 ? 1e-37f : fabsf(k_factor);
    copy_queries(k_factor < 0);
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      const int first = tile * kKeys;
      add(position, first, first < sight.all.begin || first + kKeys > sight.all.end, keys);
    }
    store();
  }

 private:
  static __device__ int thread() { return static_cast<int>(ptx::opaque(threadIdx.x % kThreads)); }

  // The lane's row i of two.
  __device__ int row_of(int i) const {
    const int own = thread();
    return rows_.first + 64 * warpgroup_ + own / 32 * 16 + 8 * i + own % 32 / 4;
  }

  // Several at a time on their way.
  __device__ void copy_queries(bool flip) const {
    constexpr int kPieces = kNumbers / 8, kAll = 64 * kPieces, kBatch = 4;
    const int first_row = rows_.first + 64 * warpgroup_;
#pragma unroll 1
    for (int first = thread(); first < kAll; first += kBatch * kThreads) {
      unsigned words[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int index = first + i * kThreads;
        if (index >= kAll) break;
        load_query<kForm.head_size>(params_, rows_, first_row + index / kPieces,
                                    index % kPieces * 8, flip, words[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int index = first + i * kThreads;
        if (index >= kAll) break;
        const auto row = static_cast<unsigned>(index / kPieces);
        const auto unit = static_cast<unsigned>(index % kPieces);
        ptx::store_shared_words(memory_.queries(warpgroup_) + swizzled(row, unit % 8) +
                                    unit / 8 * kConfig.query_panel_bytes(),
                                words[i]);
      }
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(1 + static_cast<unsigned>(warpgroup_), kThreads);
  }

  __device__ void add(Position& position, int first_key, bool is_masked, int keys) {
    float scores[kTiles][4];
    const unsigned key_scales = memory_.scales(position.stage);
    ptx::mbarrier_wait(memory_.full(position.stage), position.parity);
    multiply_keys(scores, memory_.stage(position.stage));
    if constexpr (kForm.k_scales) {
      float scales[kTiles][2];
      load_scales(key_scales, scales);
      multiply_by_scales(scores, scales);
    }
    release(position);
    if (is_masked) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mask(scores, i, first_key, seen_by_row(params_, rows_, row_of(i), keys));
      }
    }
    float rescale[2];
    weigh(scores, factor_, state_, rescale);
    ptx::mbarrier_wait(memory_.full(position.stage), position.parity);
    if constexpr (kForm.v_scales) {
      float scales[kTiles][2];
      load_scales(memory_.scales(position.stage), scales);
      multiply_by_value_scales(scores, scales, state_, rescale);
    }
    // Maxima soon stay as they are.
    if (numeric::max_of_lanes(rescale[0] != 1 || rescale[1] != 1 ? 1u : 0u) != 0) {
      rescale_sums(sums_, rescale);
    }
    multiply_values(scores, memory_.stage(position.stage));
    release(position);
  }

  __device__ void release(Position& position) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(memory_.empty(position.stage));
    position.advance();
  }

  __device__ void multiply_keys(float (&scores)[kTiles][4], unsigned keys) const {
    const unsigned queries = memory_.queries(warpgroup_);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kNumbers / 16; ++step) {
      const auto panel = static_cast<unsigned>(step / 4);
      const int in_panel = step % 4 * 32;
      ptx::WgmmaHalf<kKeys>::template issue<kForm.q>(
          flat(scores),
          ptx::k_major_descriptor(queries + panel * kConfig.query_panel_bytes(), in_panel),
          ptx::k_major_descriptor(keys + panel * kConfig.panel_bytes(), in_panel), step > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }

  __device__ void multiply_values(const float (&weights)[kTiles][4], unsigned values) {
    unsigned a[kKeys / 16][4];
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) weights_of<kForm.q>(weights, step, a[step]);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      ptx::WgmmaHalf<kNumbers>::template issue<kForm.q, true>(
          flat(sums_), a[step],
          ptx::n_major_descriptor(values + static_cast<unsigned>(step * 16 * kConfig.kPanelRow),
                                  kConfig.panel_bytes()),
          true);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }

  __device__ void store() const {
    const float v_factor = factor_of<kForm.v, kForm.v_scales>(params_.v, rows_.key_head);
    const float in_units = __fmul_rn(state_.unit, v_factor);
    const float sums_of_weights[2] = {sum_of_quad(state_.sum[0]), sum_of_quad(state_.sum[1])};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = sums_of_weights[i];
      const int row = row_of(i), dim = static_cast<int>(threadIdx.x % 4) * 2;
      if (row >= rows_.end) continue;
      const float inverse = inverse_of(sum);
#pragma unroll
      for (int tile = 0; tile < kNumbers / 8; ++tile) {
        if (8 * tile >= kForm.head_size) continue;
        const float (&sums)[4] = sums_[tile];
        store_pair<kForm>(params_, rows_, row, 8 * tile + dim, __fmul_rn(sums[2 * i], in_units),
                          __fmul_rn(sums[2 * i + 1], in_units), inverse);
      }
      if (dim == 0) {
        store_state<kForm>(params_, rows_, row, __fmul_rn(state_.maximum[i], factor_), sum);
      }
    }
  }

  const AttentionParams& params_;
  const WarpgroupMemory<kConfig>& memory_;
  const Rows& rows_;
  const int warpgroup_;
  float factor_ = 1;
  float sums_[kNumbers / 8][4] = {};
  RowState state_;
};

}  // namespace octofold::attention
