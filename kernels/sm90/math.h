// The consumers: a math warpgroup multiplies the stages of the ring and sums tiles.
#pragma once

#include "kernels/config/sm90_gemm.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/ptx/wgmma_fp8.h"
#include "kernels/sm90/pipeline.h"
#include "kernels/sm90/scales.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

using config::kStageDepth;
using config::MathOrder;

// Named barriers of the warpgroups' order; 0 is __syncthreads.
inline constexpr unsigned kFirstOrderBarrier = 1;

// A tile's sums, as scales.h says which is which.
template <Sm90GemmConfig kConfig>
using Sums = float[kConfig.sub_tiles()][kConfig.tile_columns / 2];

template <Sm90GemmConfig kConfig>
class MathWarpgroup {
 public:
  static constexpr int kSubTiles = kConfig.sub_tiles();
  static constexpr int kSums = kConfig.tile_columns / 2;  // of a sub-tile

  // `any_stages`: whether there is anything to sum at all.
  __device__ MathWarpgroup(const SharedMemory<kConfig>& smem, bool any_stages)
      : smem_(smem),
        // The shuffle tells the compiler that all lanes agree: descriptors stay in uniform
        // registers.
        warpgroup_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_row_(warpgroup_ * 64 * kSubTiles),
        row_scales_(first_row_, static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane_ / 4),
        column_scales_(2 * (lane_ % 4)) {
    if constexpr (kConfig.order == MathOrder::kOrdered) {
      if (warpgroup_ == kConfig.math_warpgroups - 1) let_next_multiply();  // the first one begins
    }
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
    row_scales_.begin_tile(tile);
    column_scales_.begin_tile(tile);
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      if constexpr (kConfig.promote()) {
        add_promoted(sums, k + kStageDepth < tile.k_end || stages_follow);
      } else {
        add(sums);
      }
    }
  }

 private:
  // One stage: into partial sums by the tensor core, from there into the sums in FP32.
  __device__ void add_promoted(Sums<kConfig>& sums, bool stages_follow) {
    if constexpr (!kConfig.early_wait) await_stage();
    const RowScales<kConfig> row_scales = row_scales_;
    const ColumnScales<kConfig> column_scales = column_scales_;
    const int stage = position_.stage;
    position_.advance();
#pragma unroll
    for (int sub_tile = 0; sub_tile < kSubTiles; ++sub_tile) {
      const bool last = sub_tile == kSubTiles - 1;
      float partial[kSums];
      if constexpr (kConfig.order == MathOrder::kOrdered) await_turn();
      ptx::wgmma_fence();
      issue(stage, sub_tile, partial, false);
      ptx::wgmma_commit();
      if constexpr (kConfig.order == MathOrder::kOrdered) let_next_multiply();
      if constexpr (kConfig.early_wait) {
        if (last && stages_follow) await_stage();
      }
      ptx::wgmma_wait<0>();
      if (last) release(stage);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[sub_tile][i] += partial[i] * (row_scales.at(sub_tile, i) * column_scales.at(i));
      }
    }
  }

  // One stage, added by the tensor core itself.
  __device__ void add(Sums<kConfig>& sums) {
    await_stage();
    ptx::wgmma_fence();
#pragma unroll
    for (int sub_tile = 0; sub_tile < kSubTiles; ++sub_tile) {
      issue(position_.stage, sub_tile, sums[sub_tile], true);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    release(position_.stage);
    position_.advance();
  }

  __device__ void await_stage() {
    ptx::mbarrier_wait(smem_.full(position_.stage), position_.parity);
    row_scales_.read(smem_, position_.stage);
    column_scales_.read(smem_, position_.stage);
  }

  // Products of a sub-tile's 64 rows and all columns of the tile, over one stage.
  __device__ void issue(int stage, int sub_tile, float (&sums)[kSums], bool accumulate) {
    const unsigned rows = smem_.rows(stage) + (first_row_ + 64 * sub_tile) * kStageDepth;
    const unsigned columns = smem_.columns(stage);
#pragma unroll
    for (int k = 0; k < kStageDepth; k += 32) {
      ptx::WgmmaFp8<kConfig.tile_columns>::template issue<kConfig.rows().type,
                                                          kConfig.columns().type>(
          sums, ptx::k_major_descriptor(rows, k), ptx::k_major_descriptor(columns, k),
          accumulate || k > 0);
    }
  }

  __device__ void release(int stage) {
    if constexpr (kConfig.cluster_size() > 1) {
      if (lane_ < kConfig.cluster_size()) ptx::mbarrier_arrive_at_rank(smem_.empty(stage), lane_);
    } else {
      if (lane_ == 0) ptx::mbarrier_arrive(smem_.empty(stage));
    }
  }

  __device__ void await_turn() const {
    ptx::barrier_sync(kFirstOrderBarrier + warpgroup_, kConfig.math_threads());
  }
  __device__ void let_next_multiply() const {
    ptx::barrier_arrive(kFirstOrderBarrier + (warpgroup_ + 1) % kConfig.math_warpgroups,
                        kConfig.math_threads());
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
