// A warpgroup sums a tile: codes of 32 or 64 of the depth become operands in registers while those
// before them are multiplied.
//
// A product whose first operand is in registers is taken by the tensor cores only when they are
// done with the one before. So a warp decodes while its last product runs, and others' do: two or
// three warpgroups keep tensor cores busy, and the longer products of more rows do.
#pragma once

#include "kernels/ptx/wgmma.h"
#include "kernels/ptx/wgmma_half.h"
#include "kernels/weight_only_sm90/block_scales.h"
#include "kernels/weight_only_sm90/pipeline.h"
#include "kernels/weight_only_sm90/weights.h"

namespace octofold::weight_only_sm90 {

// A thread's sums: of each sub-tile, for each eight rows of x, two of them in column_of(lane, 0)
// and the same two in column_of(lane, 1).
template <Sm90WeightOnlyConfig kConfig>
using Sums = float[kConfig.sub_tiles()][kConfig.tile_rows / 2];

template <Sm90WeightOnlyConfig kConfig>
class Products {
  static constexpr int kSubTiles = kConfig.sub_tiles();
  // Products of a sub-tile that are decoded at a time, a portion, and its portions in a stage.
  static constexpr int kAtOnce = kConfig.products_at_once(), kOfSubTile = 8 / kAtOnce;
  static constexpr int kPortions = kOfSubTile * kSubTiles;

 public:
  // `group`: of the depth. It takes every depth_groups-th stage, so that where there are several
  // groups a block has one tile.
  __device__ Products(const SharedMemory<kConfig>& smem, int group)
      : smem_(smem),
        warpgroup_(__shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0) %
                   kConfig.warpgroups) {
    for (int i = 0; i < group; ++i) ring_.advance();
  }

  // `steps`: those of its group.
  __device__ void sum_tile(int steps, Sums<kConfig>& sums) {
    constexpr int kSums = kConfig.tile_rows / 2;
#pragma unroll
    for (int i = 0; i < kSubTiles * kSums; ++i) sums[i / kSums][i % kSums] = 0;
    if (steps == 0) return;
    await();
    load(0);
    scales_.begin(scales(ring_.stage));
    decode(ring_.stage, 0);
    load(1);
    int before = -1;  // the stage that may still be read
#pragma unroll 1
    for (int step = 0; step < steps; ++step) add_stage(step + 1 < steps, before, sums);
    ptx::wgmma_wait<0>();
    release(before);
    advance();
#pragma unroll
    for (int i = 0; i < kSubTiles; ++i) {
      ptx::wgmma_pin(sums[i]);
      scales_.finish(i, sums[i]);
    }
  }

 private:
  // All portions of a stage, the first of which is decoded and the second on its way; leaves the
  // next stage so.
  __device__ void add_stage(bool more, int& before, Sums<kConfig>& sums) {
    const int stage = ring_.stage;
#pragma unroll
    for (int portion = 0; portion < kPortions; ++portion) {
      const int sub_tile = portion / kOfSubTile, part = portion % kOfSubTile;
      if (part == 0) scales_.before(sub_tile, sums[sub_tile]);
      ptx::wgmma_fence();
      multiply(stage, part, scales_.target(sums[sub_tile]), scales_.accumulates(part));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // the products before these have read their operands
      if (portion == 0 && before >= 0) release(before);
      if (portion + 1 < kPortions) {
        decode(stage, portion + 1);
      } else if (more) {
        scales_.next(scales(ring_.stage));
        decode(ring_.stage, 0);
      }
      if (portion + 2 < kPortions) {
        load(portion + 2);
      } else if (more) {
        if (portion + 2 == kPortions) {
          advance();
          await();
        }
        load(portion + 2 - kPortions);
      }
      if (part == kOfSubTile - 1) scales_.after(scales(stage), sub_tile, sums[sub_tile]);
    }
    before = stage;
  }

  // Codes of the stage that the ring has come to.
  __device__ void load(int portion) {
    weights_.load(smem_.w(ring_.stage), first_column() + portion / kOfSubTile * 64,
                  portion % kOfSubTile * kAtOnce, codes_);
  }
  // Decodes the codes that were loaded, which are a portion of this stage.
  __device__ void decode(int stage, int portion) {
    Operands<kConfig>& to = operands_[portion % 2];
    if constexpr (kConfig.depth_factors) {
      const int first = first_column() / 128 * kScaleBlock + portion % kOfSubTile * kAtOnce * 16;
      const DepthFactors factors{smem_.scales(stage) + 4 * (first + 2 * Lane().c)};
      weight_only_sm90::decode(codes_, factors, to);
    } else {
      weight_only_sm90::decode(codes_, scales_.factors(portion / kOfSubTile), to);
    }
  }
  __device__ int first_column() const { return warpgroup_ * kConfig.warpgroup_columns(); }
  __device__ unsigned scales(int stage) const { return smem_.scales(stage) + 4 * first_column(); }

  template <int kSums>
  __device__ void multiply(int stage, int part, float (&sums)[kSums], bool accumulate) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int product = part * kAtOnce + i;  // 64 of the depth lie in 128 bytes
      ptx::WgmmaHalf<kConfig.tile_rows>::template issue<kConfig.x>(
          sums, operands_[part % 2].a[i],
          ptx::k_major_descriptor(smem_.x(stage, product / 4), product % 4 * 32),
          accumulate || i > 0);
    }
  }

  __device__ void advance() {
#pragma unroll
    for (int i = 0; i < kConfig.depth_groups; ++i) ring_.advance();
  }
  __device__ void await() const { ptx::mbarrier_wait(smem_.full(ring_.stage), ring_.parity); }
  __device__ void release(int stage) const { ptx::mbarrier_arrive_for_warp(smem_.empty(stage)); }

  const SharedMemory<kConfig>& smem_;
  const int warpgroup_;
  config::RingPosition<kConfig.stages> ring_;
  const Weights<kConfig> weights_;
  typename BlockScalesOf<kConfig>::Type scales_;
  Codes<kConfig> codes_;  // on their way, or there: they are decoded a portion later
  Operands<kConfig> operands_[2];
};

}  // namespace octofold::weight_only_sm90
