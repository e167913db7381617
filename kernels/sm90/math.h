// The consumers: a math warpgroup multiplies the stages of the ring and sums tiles.
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/ptx/wgmma_fp8.h"
#include "kernels/sm90/config/gemm.h"
#include "kernels/sm90/pipeline.h"
#include "kernels/sm90/scales.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

using config::kStageDepth;
using config::MathOrder;

// Named barriers of the warpgroups' order, each of one that waits and one that lets it go; 0 is
// __syncthreads.
inline constexpr unsigned kFirstOrderBarrier = 1;

// A tile's sums, as scales.h says which is which.
template <Sm90GemmConfig kConfig>
using Sums = float[kConfig.sub_tiles()][kConfig.tile_columns / 2];

template <Sm90GemmConfig kConfig>
class MathWarpgroup {
 public:
  static constexpr int kSubTiles = kConfig.sub_tiles();
  static constexpr int kSums = kConfig.tile_columns / 2;  // of a sub-tile
  static constexpr bool kFactorsDiffer = kConfig.row_scales() == Granularity::kBlock1x128 &&
                                         kConfig.column_scales() == Granularity::kBlock1x128;

  // `any_stages`: whether there is anything to sum at all.
  __device__ MathWarpgroup(const SharedMemory<kConfig>& smem, bool any_stages)
      : smem_(smem),
        // The shuffle tells the compiler that all lanes agree: descriptors stay in uniform
        // registers.
        warpgroup_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_row_(warpgroup_ * kConfig.warpgroup_rows()),
        row_scales_(first_row_, static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane_ / 4),
        column_scales_(2 * (lane_ % 4)) {
    if (warpgroup_ == kConfig.math_warpgroups - 1) let_next_multiply();  // the first one begins
    if constexpr (kConfig.early_wait) {
      if (any_stages) await_stage();
    }
  }

  // `stages_follow`: whether there is anything to sum after this tile.
  __device__ void sum_tile(const Tile& tile, bool stages_follow, Sums<kConfig>& sums) {
#pragma unroll
    for (int sub_tile = 0; sub_tile < kSubTiles; ++sub_tile) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[sub_tile][i] = 0.0f;
    }
    if constexpr (kConfig.math_warpgroups > 1) {
      if (tile.row + first_row_ >= tile.row_end) return pass_tile(tile, stages_follow);
    }
    row_scales_.begin_tile(tile);
    column_scales_.begin_tile(tile);
    if constexpr (!kConfig.promote()) {
      add_all(tile, sums);
    } else if constexpr (kConfig.order == MathOrder::kAlternating) {
      add_in_turn(tile, sums);
    } else if constexpr (kConfig.loads_sub_tiles() && kConfig.row_sub_tiles() == 2) {
      const bool has_second = tile.row + first_row_ + config::kSubTileRows < tile.row_end;
      if (has_second) {
        add_all_promoted<2>(tile, stages_follow, sums);
      } else {
        add_all_promoted<1>(tile, stages_follow, sums);
      }
    } else {
      add_all_promoted<kSubTiles>(tile, stages_follow, sums);
    }
  }

 private:
  // No row of this warpgroup's is D's: only the others' stages and turns are its business.
  __device__ void pass_tile(const Tile& tile, bool stages_follow) {
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      ptx::mbarrier_wait(smem_.full(position_.stage), position_.parity);
      for (int sub_tile = 0; sub_tile < kSubTiles; ++sub_tile) pass_turn();
      release(position_.stage);
      position_.advance();
    }
    if constexpr (kConfig.early_wait) {
      if (stages_follow) await_stage();
    }
  }

  // All stages, of the first so many sub-tiles; the others have no rows.
  template <int kCount>
  __device__ void add_all_promoted(const Tile& tile, bool stages_follow, Sums<kConfig>& sums) {
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      add_promoted<kCount>(k + kStageDepth < tile.k_end || stages_follow, sums);
    }
  }

  // One stage: into partial sums by the tensor core, from there into the sums in FP32.
  template <int kCount>
  __device__ void add_promoted(bool stages_follow, Sums<kConfig>& sums) {
    if constexpr (!kConfig.early_wait) await_stage();
    const RowScales<kConfig> row_scales = row_scales_;
    const ColumnScales<kConfig> column_scales = column_scales_;
    const int stage = position_.stage;
    position_.advance();
#pragma unroll
    for (int sub_tile = 0; sub_tile < kCount; ++sub_tile) {
      const bool last = sub_tile == kCount - 1;
      float partial[kSums];
      await_turn();
      ptx::wgmma_fence();
      issue(stage, sub_tile, partial, false);
      ptx::wgmma_commit();
      let_next_multiply();
      if constexpr (kConfig.early_wait) {
        if (last && stages_follow) await_stage();
      }
      float factors[kSums];
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        factors[i] = row_scales.at(sub_tile, i) * column_scales.at(sub_tile, i);
        // Where each element has one of its own, multiplied while the tensor core is busy.
        if constexpr (kFactorsDiffer) factors[i] = ptx::opaque(factors[i]);
      }
      ptx::wgmma_wait<0>();
      if (last) release(stage);
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[sub_tile][i] += partial[i] * factors[i];
    }
    for (int sub_tile = kCount; sub_tile < kSubTiles; ++sub_tile) pass_turn();
  }

  // All stages, each promoted while the next one's products are under way. The loop's body has two,
  // so that either of the partial sums has registers of its own.
  __device__ void add_in_turn(const Tile& tile, Sums<kConfig>& sums) {
    int left = tile.k_end - tile.k_begin;
    if (left <= 0) return;
    float first[kSums], second[kSums];
    int stage = begin_stage(first);
    while (true) {
      left -= kStageDepth;
      if (left <= 0) return finish_stage<0>(stage, first, sums);
      int next = begin_stage(second);
      finish_stage<1>(stage, first, sums);
      left -= kStageDepth;
      if (left <= 0) return finish_stage<0>(next, second, sums);
      stage = begin_stage(first);
      finish_stage<1>(next, second, sums);
    }
  }

  __device__ int begin_stage(float (&partial)[kSums]) {
    const int stage = position_.stage;
    await_operands();
    ptx::wgmma_fence();
    issue(stage, 0, partial, false);
    ptx::wgmma_commit();
    position_.advance();
    return stage;
  }

  // Of the stages that were begun, the earliest: `kBehind` more are under way.
  template <int kBehind>
  __device__ void finish_stage(int stage, const float (&partial)[kSums], Sums<kConfig>& sums) {
    row_scales_.read(smem_, stage);
    column_scales_.read(smem_, stage);
    ptx::wgmma_wait<kBehind>();
    release(stage);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums[0][i] += partial[i] * (row_scales_.at(0, i) * column_scales_.at(0, i));
    }
  }

  // All stages, added by the tensor core itself, which always has another one to go on with.
  __device__ void add_all(const Tile& tile, Sums<kConfig>& sums) {
    int before = -1;  // the stage that may still be read
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      const int stage = position_.stage;
      await_operands();
      ptx::wgmma_fence();
#pragma unroll
      for (int sub_tile = 0; sub_tile < kSubTiles; ++sub_tile) {
        issue(stage, sub_tile, sums[sub_tile], true);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (before >= 0) release(before);
      before = stage;
      position_.advance();
    }
    ptx::wgmma_wait<0>();
    if (before >= 0) release(before);
  }

  __device__ void await_stage() {
    await_operands();
    row_scales_.read(smem_, position_.stage);
    column_scales_.read(smem_, position_.stage);
  }

  __device__ void await_operands() {
    ptx::mbarrier_wait(smem_.full(position_.stage), position_.parity);
    // Words were written by threads that did not wait for them.
    if constexpr (kConfig.load == config::OperandLoad::kWords) ptx::fence_proxy_async();
  }

  // Products of a sub-tile over one stage: 64 rows and all columns of the tile, of a gated output
  // their gates or their ups.
  __device__ void issue(int stage, int sub_tile, float (&sums)[kSums], bool accumulate) {
    constexpr int kRowSubTiles = kConfig.row_sub_tiles();
    const int row = first_row_ + 64 * (sub_tile % kRowSubTiles);
    const int column = sub_tile / kRowSubTiles * kConfig.tile_columns;
    const unsigned rows = smem_.rows(stage) + row * kStageDepth;
    const unsigned columns = smem_.columns(stage) + column * kStageDepth;
#pragma unroll
    for (int k = 0; k < kStageDepth; k += 32) {
      ptx::WgmmaFp8<kConfig.tile_columns>::template issue<kConfig.rows().type,
                                                          kConfig.columns().type>(
          sums, ptx::k_major_descriptor(rows, k), ptx::k_major_descriptor(columns, k),
          accumulate || k > 0);
    }
  }

  __device__ void release(int stage) {
    constexpr int kSharers = kConfig.cluster_rows * kConfig.cluster_columns;
    if constexpr (kSharers > 1) {
      if (lane_ < kSharers) ptx::mbarrier_arrive_at_rank(smem_.empty(stage), lane_);
    } else {
      if (lane_ == 0) ptx::mbarrier_arrive(smem_.empty(stage));
    }
  }

  // Where there is an order, each sub-tile's products are a turn.
  __device__ void await_turn() const {
    if constexpr (kConfig.order == MathOrder::kOrdered) {
      ptx::barrier_sync(kFirstOrderBarrier + warpgroup_, 2 * 128);
    }
  }
  __device__ void let_next_multiply() const {
    if constexpr (kConfig.order == MathOrder::kOrdered) {
      const int next = (warpgroup_ + 1) % kConfig.math_warpgroups;
      ptx::barrier_arrive(kFirstOrderBarrier + next, 2 * 128);
    }
  }

  __device__ void pass_turn() const {
    await_turn();
    let_next_multiply();
  }

  const SharedMemory<kConfig>& smem_;
  RingPosition<kConfig.stages> position_;
  int warpgroup_;
  int lane_;
  int first_row_;  // of the warpgroup in the tile
  RowScales<kConfig> row_scales_;
  ColumnScales<kConfig> column_scales_;
};

}  // namespace octofold::sm90
