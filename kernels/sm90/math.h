// A math warpgroup's work: from the stages of the ring to the sums of its rows of a tile.
#pragma once

#include "kernels/config/gemm_params.h"
#include "kernels/gemm/pipeline.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/ptx/wgmma_fp8.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

using config::GemmConfig;
using config::GemmScaling;
using config::MathOrder;

// Named barriers of the warpgroups' turns; 0 is __syncthreads.
inline constexpr unsigned kFirstTurnBarrier = 1;

template <GemmConfig kConfig>
class MathWarpgroup {
 public:
  static constexpr int kWaves = kConfig.waves();
  static constexpr int kSums = kConfig.tile_n / 2;

  __device__ MathWarpgroup(const SharedMemory<kConfig>& smem, int blocks_to_come)
      : smem_(smem),
        // The shuffle tells the compiler that all lanes agree: descriptors stay in uniform
        // registers.
        warpgroup_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        blocks_to_come_(blocks_to_come) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    first_row_ = warpgroup_ * 64 * kWaves;
    scale_row_ = first_row_ + warp * 16 + lane_ / 4;
    if constexpr (kConfig.order == MathOrder::kTakeTurns) {
      if (warpgroup_ == kConfig.math_warpgroups - 1) pass_turn();  // the first one begins
    }
    if constexpr (kConfig.early_wait) {
      if (blocks_to_come > 0) await_stage();  // none comes where K is 0
    }
  }

  // Sums a tile over all of K. `origin_n`: the tile's first column.
  __device__ void sum_tile(int k_blocks, int origin_n, float (&sums)[kWaves][kSums]) {
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[wave][i] = 0.0f;
    }
    if constexpr (kConfig.promote) {
      const int split = kScaleBlock - origin_n % kScaleBlock;
      for (int block = 0; block < k_blocks; ++block) add_promoted_block(split, sums);
    } else {
      for (int block = 0; block < k_blocks; ++block) add_block(sums);
    }
  }

 private:
  // Scales of this thread's rows, and of the columns: of the one or two 128-blocks of N that the
  // tile touches, or of this thread's own pairs of columns.
  struct Scales {
    float rows[kWaves][2];
    float columns[kConfig.scaling == GemmScaling::kBlockByBlock ? kSums / 2 : 2];
  };

  // One stage of K: into a partial sum by the tensor core, from there into the sum in FP32.
  __device__ void add_promoted_block(int split, float (&sums)[kWaves][kSums]) {
    if constexpr (!kConfig.early_wait) await_stage();
    const Scales scales = scales_;
    const int stage = position_.stage;
    position_.advance();
    --blocks_to_come_;
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave) {
      const bool last_wave = wave == kWaves - 1;
      float partial[kSums];
      if constexpr (kConfig.order == MathOrder::kTakeTurns) await_turn();
      ptx::wgmma_fence();
      issue(stage, wave, partial, false);
      ptx::wgmma_commit();
      if constexpr (kConfig.order == MathOrder::kTakeTurns) pass_turn();
      if constexpr (kConfig.early_wait) {
        if (last_wave && blocks_to_come_ > 0) await_stage();
      }
      ptx::wgmma_wait<0>();
      if (last_wave) release(stage);
      promote(scales, wave, split, partial, sums[wave]);
    }
  }

  // One stage of K, added by the tensor core itself; the stage before is released once done with.
  __device__ void add_block(float (&sums)[kWaves][kSums]) {
    await_stage();
    ptx::wgmma_fence();
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave) issue(position_.stage, wave, sums[wave], true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    release(position_.stage);
    position_.advance();
  }

  __device__ void await_stage() {
    ptx::mbarrier_wait(smem_.full(position_.stage), position_.parity);
    if constexpr (config::has_block_scales(kConfig.scaling)) read_scales(position_.stage);
  }

  __device__ void read_scales(int stage) {
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave) {
      const unsigned rows = smem_.scale_a(stage) + 4 * (scale_row_ + 64 * wave);
      scales_.rows[wave][0] = ptx::load_shared(rows);
      scales_.rows[wave][1] = ptx::load_shared(rows + 4 * 8);
    }
    if constexpr (kConfig.scaling == GemmScaling::kBlock) {
      const float2 pair = ptx::load_shared_pair(smem_.scale_b(stage));
      scales_.columns[0] = pair.x;
      scales_.columns[1] = pair.y;
    } else {
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j) {
        const unsigned column = smem_.scale_b(stage) + 4 * (8 * j + 2 * (lane_ % 4));
        const float2 pair = ptx::load_shared_pair(column);
        scales_.columns[2 * j] = pair.x;
        scales_.columns[2 * j + 1] = pair.y;
      }
    }
  }

  // Products of one wave's 64 rows and all columns of the tile, over one stage of K.
  __device__ void issue(int stage, int wave, float (&sums)[kSums], bool accumulate) {
    const unsigned a = smem_.a(stage) + (first_row_ + 64 * wave) * kScaleBlock;
    const unsigned b = smem_.b(stage);
#pragma unroll
    for (int k = 0; k < kScaleBlock; k += 32) {
      ptx::WgmmaFp8<kConfig.tile_n>::template issue<kConfig.a, kConfig.b>(
          sums, ptx::k_major_descriptor(a, k), ptx::k_major_descriptor(b, k), accumulate || k > 0);
    }
  }

  __device__ void release(int stage) {
    if constexpr (kConfig.cluster_size() > 1) {
      if (lane_ < kConfig.cluster_size()) ptx::mbarrier_arrive_at_rank(smem_.empty(stage), lane_);
    } else {
      if (lane_ == 0) ptx::mbarrier_arrive(smem_.empty(stage));
    }
  }

  __device__ void promote(const Scales& scales, int wave, int split, const float (&partial)[kSums],
                          float (&sums)[kSums]) {
    if constexpr (!config::has_block_scales(kConfig.scaling)) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += partial[i];
    } else if constexpr (kConfig.scaling == GemmScaling::kBlock) {
      // A strip of columns lies in one 128-block of N, whichever the tile's origin.
      constexpr int kStrip = GemmConfig::common_divisor(kConfig.tile_n, kScaleBlock);
      float scale[kConfig.tile_n / kStrip][2];
#pragma unroll
      for (int strip = 0; strip < kConfig.tile_n / kStrip; ++strip) {
        const bool second = kConfig.scale_columns() == 2 && strip * kStrip >= split;
        const float column = second ? scales.columns[1] : scales.columns[0];
        scale[strip][0] = scales.rows[wave][0] * column;
        scale[strip][1] = scales.rows[wave][1] * column;
      }
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += partial[i] * scale[2 * i / kStrip][i / 2 % 2];
    } else {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i] += partial[i] * (scales.rows[wave][i / 2 % 2] * scales.columns[i / 4 * 2 + i % 2]);
      }
    }
  }

  __device__ void await_turn() const { ptx::barrier_sync(kFirstTurnBarrier + warpgroup_, 256); }
  __device__ void pass_turn() const {
    ptx::barrier_arrive(kFirstTurnBarrier + (warpgroup_ + 1) % kConfig.math_warpgroups, 256);
  }

  const SharedMemory<kConfig>& smem_;
  RingPosition<kConfig.stages> position_;
  Scales scales_;
  int warpgroup_;
  int lane_;
  int first_row_;  // of the warpgroup in the tile
  int scale_row_;  // of this thread in the tile, first wave; the other one lies 8 below
  int blocks_to_come_;
};

}  // namespace octofold::sm90
