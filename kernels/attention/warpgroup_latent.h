// Attention over a wide latent on Hopper (DeepSeek's 576 numbers, the first 512 of which are
// values), by products of warpgroups. Two warpgroups have the same 64 rows: the first multiplies
// queries and keys and makes weights of the scores, and both multiply weights and values, each half
// of the columns. A third one decodes keys into the stages of a ring, once for both uses.
//
// The second warpgroup begins with a tile's values when the scores of the next tile are there. So
// the tensor cores have its products while the first one is at the softmax.
#pragma once

#include "kernels/attention/config/warpgroup_latent.h"
#include "kernels/attention/output.h"
#include "kernels/attention/softmax.h"
#include "kernels/attention/warpgroup_memory.h"
#include "kernels/attention/warpgroup_tiles.h"
#include "kernels/numeric/lanes.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/warp_arrival.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/ptx/wgmma_half.h"
#include "kernels/shared/stages.h"

namespace octofold::attention {

using config::WarpgroupLatentConfig;

template <WarpgroupLatentConfig kConfig>
struct WarpgroupLatentMemory {
  unsigned base;  // a multiple of 1024

  __device__ unsigned queries() const { return base; }
  // Keys as 16-bit numbers, the first of which are values.
  __device__ unsigned keys(int i) const {
    return base + static_cast<unsigned>(kConfig.stages_offset() + i * kConfig.stage_bytes());
  }
  __device__ unsigned weights() const { return base + kConfig.weights_offset(); }
  __device__ unsigned factors(unsigned row) const {
    return base + kConfig.factors_offset() + kConfig.factor_bytes() * row;
  }
  __device__ unsigned scales(int i) const {
    return base + static_cast<unsigned>(kConfig.scales_offset() + i * 8 * kConfig.keys);
  }
  __device__ unsigned value_scales(int i) const { return scales(i) + 4 * kConfig.keys; }
  // All that a stage holds is there; all warps that multiply have read it.
  __device__ unsigned full(int i) const {
    return base + static_cast<unsigned>(kConfig.barriers_offset() + 8 * i);
  }
  __device__ unsigned empty(int i) const { return full(kConfig.stages + i); }
  // The same of weights.
  __device__ unsigned weights_full() const { return full(2 * kConfig.stages); }
  __device__ unsigned weights_empty() const { return full(2 * kConfig.stages + 1); }

  __device__ void init_barriers() const {
    for (int i = 0; i < kConfig.stages; ++i) {
      ptx::mbarrier_init(full(i), kConfig.producer_threads() / 32 * ptx::kArrivalsOfWarp);
      ptx::mbarrier_init(empty(i), 8 * ptx::kArrivalsOfWarp);
    }
    ptx::mbarrier_init(weights_full(), 4 * ptx::kArrivalsOfWarp);
    ptx::mbarrier_init(weights_empty(), 4 * ptx::kArrivalsOfWarp);
    ptx::fence_mbarrier_init();
  }
};

}  // namespace octofold::attention

namespace octofold {

namespace attention {

// The work of one of the two warpgroups. kScores: true for the first one.
template <WarpgroupLatentConfig kConfig, bool kScores>
class WarpgroupLatent {
  static constexpr AttentionForm kForm = kConfig.form;
  static constexpr int kKeys = kConfig.keys;
  static constexpr int kTiles = kKeys / 8;
  static constexpr int kColumns = kConfig.columns();
  static constexpr int kFirstColumn = kScores ? 0 : kColumns;
  static constexpr int kBarrier = 1, kThreads = 256;  // of both

 public:
  __device__ WarpgroupLatent(const AttentionParams& params,
                             const WarpgroupLatentMemory<kConfig>& memory)
      : params_(params), memory_(memory) {}

  __device__ void run() {
    WorkWalk<kConfig.rows(), kForm.row_count> walk(params_);
    while (walk.next(rows_)) run_piece();
  }

 private:
  __device__ void run_piece() {
    int first_key;
    const int keys = count_keys<kForm.layout>(params_, rows_.sequence, first_key);
    const Sight sight = sight_of<kConfig.rows()>(params_, rows_, keys);
    const ScoreFactor factor = score_factor<kForm>(params_, rows_.key_head);
    factor_ = factor.magnitude;
    copy_queries(factor.flips);
    const Range all = tiles_of<kForm, kKeys>(params_, rows_, sight.any);
    for_each_part<kForm, kKeys>(rows_, all, [&](Range tiles) {
      state_ = {};
      clear(sums_);
      if constexpr (kScores) {
        if (tiles.begin < tiles.end) score_and_add(tiles, sight.all, keys);
      } else {
        for (int tile = tiles.begin; tile < tiles.end; ++tile) add();
      }
      store();
    });
  }

  // The lane's row i of two, of the block's.
  static __device__ int row_of(int i) {
    const unsigned own = ptx::opaque(threadIdx.x % 128);
    return static_cast<int>(own / 32 * 16 + own % 32 / 4) + 8 * i;
  }

  // By both warpgroups, several at a time on their way.
  __device__ void copy_queries(bool flip) const {
    constexpr int kPieces = kConfig.panels() * 8, kAll = kConfig.rows() * kPieces, kBatch = 4;
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x));
#pragma unroll 1
    for (int first = thread; first < kAll; first += kBatch * kThreads) {
      unsigned words[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int index = first + i * kThreads;
        if (index >= kAll) break;
        load_query<kForm.head_size>(params_, rows_, rows_.first + index / kPieces,
                                    index % kPieces * 8, flip, words[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int index = first + i * kThreads;
        if (index >= kAll) break;
        const auto row = static_cast<unsigned>(index / kPieces);
        const auto unit = static_cast<unsigned>(index % kPieces);
        ptx::store_shared_words(
            memory_.queries() + swizzled(row, unit % 8) + unit / 8 * kConfig.query_panel_bytes(),
            words[i]);
      }
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(kBarrier, kThreads);
  }

  // The first warpgroup's walk over tiles of keys.
  __device__ void score_and_add(Range tiles, Range seen_by_all, int keys) {
    float scores[kTiles][4], rescale[2];
    unsigned weights[kKeys / 16][4];
    config::RingPosition<kConfig.stages> next = position_;
    issue_keys(scores, next);
    ptx::wgmma_wait<0>();
    weigh_tile(scores, rescale, next, tiles.begin * kKeys, seen_by_all, keys);
    narrow_weights(scores, weights);
    hand_over(weights, rescale);
#pragma unroll 1
    for (int tile = tiles.begin + 1; tile < tiles.end; ++tile) {
      next.advance();
      issue_values([&](int step) -> const unsigned (&)[4] { return weights[step]; });
      issue_keys(scores, next);
      ptx::wgmma_wait<1>();
      release_stage();
      ptx::wgmma_wait<0>();
      ptx::mbarrier_arrive_for_warp(memory_.weights_full());
      weigh_tile(scores, rescale, next, tile * kKeys, seen_by_all, keys);
      rescale_where_changed(rescale);
      narrow_weights(scores, weights);
      hand_over(weights, rescale);
    }
    issue_values([&](int step) -> const unsigned (&)[4] { return weights[step]; });
    ptx::mbarrier_arrive_for_warp(memory_.weights_full());
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(flat(sums_));
    release_stage();
  }

  // Scores, which have come, to weights.
  __device__ void weigh_tile(float (&scores)[kTiles][4], float (&rescale)[2],
                             const config::RingPosition<kConfig.stages>& at, int first,
                             Range seen_by_all, int keys) {
    ptx::wgmma_pin(flat(scores));
    if constexpr (kForm.k_scales) {
      float scales[kTiles][2];
      load_scales(memory_.scales(at.stage), scales);
      multiply_by_scales(scores, scales);
    }
    Range seen[2] = {{0, keys}, {0, keys}};
    if (first < seen_by_all.begin || first + kKeys > seen_by_all.end) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        seen[i] = seen_by_row(params_, rows_, rows_.first + row_of(i), keys);
        mask(scores, i, first, seen[i]);
      }
    }
    weigh(scores, factor_, state_, rescale);
    if constexpr (kForm.v_scales) {
      multiply_by_value_scales(scores, memory_.value_scales(at.stage), state_, rescale, first,
                               seen);
    }
  }

  static __device__ void narrow_weights(const float (&scores)[kTiles][4],
                                        unsigned (&weights)[kKeys / 16][4]) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      weights_of<kForm.q>(scores, step, weights[step]);
    }
  }

  // Weights, and what rescales the sums before them, to the second warpgroup: once it is told.
  __device__ void hand_over(const unsigned (&weights)[kKeys / 16][4], const float (&rescale)[2]) {
    ptx::mbarrier_wait(memory_.weights_empty(), weights_parity_ ^ 1);
    weights_parity_ ^= 1;
    const unsigned column = threadIdx.x % 4 * 4;
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      const auto row = static_cast<unsigned>(row_of(i % 2));
      const auto unit = static_cast<unsigned>(i / 4 * 2 + i / 2 % 2);
      ptx::store_shared_word(memory_.weights() + swizzled(row, unit) + column,
                             weights[i / 4][i % 4]);
    }
    if (threadIdx.x % 4 < 2) {
      const bool second = threadIdx.x % 4 == 1;
      ptx::store_shared_word(memory_.factors(static_cast<unsigned>(row_of(second ? 1 : 0))),
                             __float_as_uint(second ? rescale[1] : rescale[0]));
    }
    ptx::fence_proxy_async();
  }

  // The second warpgroup's part of a tile.
  __device__ void add() {
    ptx::mbarrier_wait(memory_.weights_full(), weights_parity_);
    weights_parity_ ^= 1;
    const float rescale[2] = {ptx::load_shared(memory_.factors(static_cast<unsigned>(row_of(0)))),
                              ptx::load_shared(memory_.factors(static_cast<unsigned>(row_of(1))))};
    rescale_where_changed(rescale);
    issue_values([&](int step) { return ptx::k_major_descriptor(memory_.weights(), 32 * step); });
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(flat(sums_));
    ptx::mbarrier_arrive_for_warp(memory_.weights_empty());
    release_stage();
  }

  // Maxima soon stay as they are.
  __device__ void rescale_where_changed(const float (&rescale)[2]) {
    if (numeric::max_of_lanes(rescale[0] != 1 || rescale[1] != 1 ? 1u : 0u) != 0) {
      rescale_sums(sums_, rescale);
    }
  }

  __device__ void release_stage() {
    ptx::mbarrier_arrive_for_warp(memory_.empty(position_.stage));
    position_.advance();
  }

  __device__ void issue_keys(float (&scores)[kTiles][4],
                             const config::RingPosition<kConfig.stages>& at) const {
    ptx::mbarrier_wait(memory_.full(at.stage), at.parity);
    const unsigned stage = memory_.keys(at.stage);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < config::ceil_divide(kForm.head_size, 16); ++step) {
      const auto panel = static_cast<unsigned>(step / 4);
      const int in_panel = step % 4 * 32;
      ptx::WgmmaHalf<kKeys>::template issue<kForm.q>(
          flat(scores),
          ptx::k_major_descriptor(memory_.queries() + panel * kConfig.query_panel_bytes(),
                                  in_panel),
          ptx::k_major_descriptor(stage + panel * kConfig.panel_bytes(), in_panel), step > 0);
    }
    ptx::wgmma_commit();
  }

  // `weights`: of 16 keys, in registers or in shared memory.
  template <typename Weights>
  __device__ void issue_values(Weights&& weights) {
    const unsigned values =
        memory_.keys(position_.stage) +
        static_cast<unsigned>(kFirstColumn / kConfig.kPanel) * kConfig.panel_bytes();
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      ptx::WgmmaHalf<kColumns>::template issue<kForm.q, true>(
          flat(sums_), weights(step),
          ptx::n_major_descriptor(values + static_cast<unsigned>(step * 16 * kConfig.kPanelRow),
                                  kConfig.panel_bytes()),
          true);
    }
    ptx::wgmma_commit();
  }

  // Tells both warpgroups what the first one knows of each row; then all have read queries, too.
  __device__ void store() {
    if constexpr (kScores) {
      const float sums[2] = {sum_of_quad(state_.sum[0]), sum_of_quad(state_.sum[1])};
      // The second one has rescaled its sums.
      ptx::mbarrier_wait(memory_.weights_empty(), weights_parity_ ^ 1);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = rows_.first + row_of(i);
        if (threadIdx.x % 4 != 0) continue;
        share_end<kForm>(params_, rows_, row, state_of_row(state_.maximum[i], factor_, sums[i]),
                         state_.unit(i), memory_.factors(static_cast<unsigned>(row_of(i))));
      }
    }
    ptx::barrier_sync(kBarrier, kThreads);
    const float v_factor = factor_of<kForm.v, kForm.v_scales>(params_.v, rows_.key_head);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = rows_.first + row_of(i), dim = static_cast<int>(threadIdx.x % 4) * 2;
      if (row >= rows_.end) continue;
      const unsigned known = memory_.factors(static_cast<unsigned>(row_of(i)));
      const float in_units = __fmul_rn(load_unit(known), v_factor);
      const RowEnd<kForm> row_end = load_end<kForm>(params_, rows_, row, known);
#pragma unroll
      for (int tile = 0; tile < kColumns / 8; ++tile) {
        const int column = kFirstColumn + 8 * tile;
        if (column >= kForm.value_size) continue;
        const float (&sums)[4] = sums_[tile];
        store_pair<kForm>(params_, rows_, row, column + dim, __fmul_rn(sums[2 * i], in_units),
                          __fmul_rn(sums[2 * i + 1], in_units), row_end);
      }
    }
    ptx::barrier_sync(kBarrier, kThreads);
  }

  const AttentionParams& params_;
  const WarpgroupLatentMemory<kConfig>& memory_;
  Rows rows_;
  config::RingPosition<kConfig.stages> position_;  // of the values at hand
  unsigned weights_parity_ = 0;
  float factor_ = 1;
  float sums_[kColumns / 8][4];
  RowState<kForm> state_;
};

}  // namespace attention

template <config::WarpgroupLatentConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    warpgroup_latent_kernel(const __grid_constant__ config::AttentionParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const attention::WarpgroupLatentMemory<kConfig> memory{
      ptx::opaque(ptx::swizzled_shared_memory())};
  if (threadIdx.x == 0) memory.init_barriers();
  __syncthreads();
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  if (threadIdx.x >= 256) {
    ptx::shrink_registers<kConfig.producer_registers()>();
    attention::WarpgroupTiles<kConfig, attention::WarpgroupLatentMemory<kConfig>>(params, memory)
        .run();
  } else if (threadIdx.x < 128) {
    ptx::grow_registers<kConfig.scorer_registers()>();
    attention::WarpgroupLatent<kConfig, true>(params, memory).run();
  } else {
    ptx::grow_registers<kConfig.summer_registers()>();
    attention::WarpgroupLatent<kConfig, false>(params, memory).run();
  }
}

}  // namespace octofold
