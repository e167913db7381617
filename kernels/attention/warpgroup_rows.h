// 64 rows of a warpgroup: products with all keys that they see, the softmax, products with values.
#pragma once

#include "kernels/attention/keys.h"
#include "kernels/attention/output.h"
#include "kernels/attention/softmax.h"
#include "kernels/attention/warpgroup_memory.h"
#include "kernels/attention/warpgroup_query_tile.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/ptx/wgmma_fp8.h"
#include "kernels/ptx/wgmma_half.h"
#include "kernels/shared/stages.h"

namespace octofold::attention {

template <WarpgroupQueriesConfig kConfig>
class WarpgroupRows {
  static constexpr AttentionForm kForm = kConfig.form;
  static constexpr int kKeys = kConfig.keys;
  static constexpr int kTiles = kKeys / 8;
  static constexpr int kColumns = kConfig.value_numbers();
  static constexpr int kThreads = 128;
  static constexpr DType kType = kConfig.kType;
  using Position = config::RingPosition<kConfig.stages>;

 public:
  __device__ WarpgroupRows(const AttentionParams& params, const WarpgroupMemory<kConfig>& memory)
      : params_(params),
        memory_(memory),
        warpgroup_(static_cast<int>(threadIdx.x / kThreads)),
        queries_(params, memory, warpgroup_),
        walk_(params) {
    values_.advance();
  }

  __device__ void run() {
    if (warpgroup_ + 1 == kConfig.warpgroups) end_turn();
    find_following();
    while (follows_) {
      rows_ = following_;
      int first_key;
      const int keys = count_keys<kForm.layout>(params_, rows_.sequence, first_key);
      const Sight sight = sight_of<kConfig.rows()>(params_, rows_, keys);
      const ScoreFactor factor = score_factor<kForm>(params_, rows_.key_head);
      queries_.await(factor.flips);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float unit = queries_.unit(row_of(i) - rows_.first - 64 * warpgroup_);
        const float of_row = __fmul_rn(factor.magnitude, unit);
        factor_[i] = of_row < 1e-37f ? 1e-37f : of_row;  // NaN stays
      }
      const Range all = tiles_of<kForm, kKeys>(params_, rows_, sight.any);
      for_each_part<kForm, kKeys>(rows_, all, [&](Range tiles) {
        state_ = {};
        clear(sums_);
        if (tiles.begin < tiles.end) {
          add(tiles, sight.all, keys);
        } else {
          find_following();
        }
        store();
      });
    }
  }

 private:
  static __device__ int thread() { return static_cast<int>(ptx::opaque(threadIdx.x % kThreads)); }

  // The lane's row i of two.
  __device__ int row_of(int i) const {
    const int own = thread();
    return rows_.first + 64 * warpgroup_ + own / 32 * 16 + 8 * i + own % 32 / 4;
  }

  // The queries of the next rows are on their way while these rows are finished.
  __device__ void find_following() {
    follows_ = walk_.next(following_);
    if (follows_) queries_.copy(following_, following_.first + 64 * warpgroup_);
  }

  // Products with the next keys and with these values are issued together; while the tensor core
  // has them, or those of another warpgroup, scores become weights.
  __device__ void add(Range tiles, Range seen_by_all, int keys) {
    float scores[kTiles][4], rescale[2];
    unsigned weights[kKeys / 16][4];
    issue_keys(scores);
    ptx::wgmma_wait<0>();
    int tile = tiles.begin;
    weigh_tile(scores, rescale, tile, seen_by_all, keys);
#pragma unroll 1
    while (++tile < tiles.end) {
      narrow_weights(scores, weights);
      begin_turn();
      issue_keys(scores);
      issue_values(weights);
      end_turn();
      const int values = values_.stage;
      pass(values_);
      ptx::wgmma_wait<1>();
      const bool changes = weigh_tile(scores, rescale, tile, seen_by_all, keys);
      ptx::wgmma_wait<0>();
      release(values);
      if (changes) rescale_sums(sums_, rescale);
    }
    narrow_weights(scores, weights);
    begin_turn();
    issue_values(weights);
    end_turn();
    if (!kForm.adds_parts() || rows_.is_last_part) find_following();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(flat(sums_));
    release(values_.stage);
    pass(values_);
  }

  // Scores, which have come, to weights. Whether sums have to be rescaled.
  __device__ bool weigh_tile(float (&scores)[kTiles][4], float (&rescale)[2], int tile,
                             Range seen_by_all, int keys) {
    ptx::wgmma_pin(flat(scores));
    if constexpr (kForm.k_scales) {
      float scales[kTiles][2];
      load_scales(memory_.scales(keys_.stage), scales);
      multiply_by_scales(scores, scales);
    }
    release(keys_.stage);
    pass(keys_);
    const int first = tile * kKeys;
    Range seen[2] = {{0, keys}, {0, keys}};
    if (first < seen_by_all.begin || first + kKeys > seen_by_all.end) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        seen[i] = seen_by_row(params_, rows_, row_of(i), keys);
        mask(scores, i, first, seen[i]);
      }
    }
    bool changes = weigh_lazily(scores, factor_, state_, rescale);
    // Also keeps the assembler from waiting for products before all this.
    ptx::mbarrier_wait(memory_.full(values_.stage), values_.parity);
    if constexpr (kForm.v_scales) {
      multiply_by_value_scales(scores, memory_.scales(values_.stage), state_, rescale, first, seen);
      changes = __any_sync(0xFFFFFFFFu, rescale[0] != 1 || rescale[1] != 1);
    }
    return changes;
  }

  __device__ void begin_turn() const {
    ptx::barrier_sync(4 + static_cast<unsigned>(warpgroup_), 256);
  }
  __device__ void end_turn() const {
    const int next = warpgroup_ + 1 == kConfig.warpgroups ? 0 : warpgroup_ + 1;
    ptx::barrier_arrive(4 + static_cast<unsigned>(next), 256);
  }

  __device__ void release(int stage) const { ptx::mbarrier_arrive_for_warp(memory_.empty(stage)); }
  // Keys and values have every other stage.
  static __device__ void pass(Position& position) {
    position.advance();
    position.advance();
  }

  __device__ void issue_keys(float (&scores)[kTiles][4]) const {
    ptx::mbarrier_wait(memory_.full(keys_.stage), keys_.parity);
    const unsigned queries = memory_.queries(warpgroup_), keys = memory_.keys(keys_.stage);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kConfig.key_steps(); ++step) {
      const auto panel = static_cast<unsigned>(step / 4);
      const int in_panel = step % 4 * 32;
      const unsigned long long of_queries =
          ptx::k_major_descriptor(queries + panel * kConfig.query_panel_bytes(), in_panel);
      const unsigned long long of_keys =
          ptx::k_major_descriptor(keys + panel * kConfig.panel_bytes(), in_panel);
      if constexpr (kConfig.fp8_scores) {
        ptx::WgmmaFp8<kKeys>::template issue<DType::kE4M3, kForm.k>(flat(scores), of_queries,
                                                                    of_keys, step > 0);
      } else {
        ptx::WgmmaHalf<kKeys>::template issue<kType>(flat(scores), of_queries, of_keys, step > 0);
      }
    }
    ptx::wgmma_commit();
  }

  static __device__ void narrow_weights(const float (&scores)[kTiles][4],
                                        unsigned (&weights)[kKeys / 16][4]) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      weights_of<kType>(scores, step, weights[step]);
    }
  }

  __device__ void issue_values(const unsigned (&weights)[kKeys / 16][4]) {
    const unsigned values = memory_.values(values_.stage);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      ptx::WgmmaHalf<kColumns>::template issue<kType, true>(
          flat(sums_), weights[step],
          ptx::n_major_descriptor(values + static_cast<unsigned>(step * 16 * kConfig.kPanelRow),
                                  kConfig.panel_bytes()),
          true);
    }
    ptx::wgmma_commit();
  }

  __device__ void store() const {
    const float v_factor = factor_of<kForm.v, kForm.v_scales>(params_.v, rows_.key_head);
#pragma unroll
    for (int i = 0; i < 2; ++i) store_row_of_lane(i, __fmul_rn(state_.unit(i), v_factor));
  }
  __device__ void store_row_of_lane(int i, float in_units) const {
    const float sum = sum_of_quad(state_.sum[i]);
    const int row = row_of(i);
    const RowEnd<kForm> row_end(params_, rows_, row,
                                state_of_row(state_.maximum[i], factor_[i], sum));
    store_row<kForm>(params_, rows_, row, sums_, i, in_units, row_end);
    if (row < rows_.end && threadIdx.x % 4 == 0) store_state<kForm>(params_, rows_, row, row_end);
  }

  const AttentionParams& params_;
  const WarpgroupMemory<kConfig>& memory_;
  const int warpgroup_;
  const WarpgroupQueryTile<kConfig> queries_;
  Position keys_, values_;
  WorkWalk<kConfig.rows(), kForm.row_count> walk_;
  Rows following_, rows_;
  bool follows_;
  float factor_[2];  // of each row's scores
  float sums_[kColumns / 8][4];
  RowState<kForm> state_;
};

}  // namespace octofold::attention
