// A consumer warpgroup multiplies the stages of the ring and sums tiles; and Order: what its
// products and their promotion overlap with.
//
// Promotion: Hopper's FP8 tensor cores keep about 14 bits over a long sum. So the products of one
// stage, 128 of K, start from zero in registers of their own (the partial sums), and are added in
// FP32 to the accumulators, times the scales of the stage.
//
// An Order is how that is timed: Promote<…> with free warpgroups or with wait-ahead (here); in
// orders.h with warpgroups in turn, with two stages under way, or without promotion.
//
//   Order(warpgroup, any_stages)                  when the kernel starts
//   add_stages(tile, stages_follow, accumulators) sums a tile
//   pass_tile(tile, stages_follow)                another warpgroup's rows alone are D's
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/ptx/wgmma_fp8.h"
#include "kernels/sm90/pipeline.h"
#include "kernels/sm90/scales.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

// The accumulators of a tile that a thread has; scales.h says which is which.
template <Sm90GemmConfig kConfig>
using Accumulators = float[kConfig.sub_tiles()][kConfig.tile_columns / 2];

// Row of the tile that a consumer thread's first accumulator of sub-tile 0 belongs to; the second
// row lies 8 below.
template <Sm90GemmConfig kConfig>
__device__ int first_row_of_thread() {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  return warp / 4 * config::kSubTileRows + warp % 4 * 16 + lane / 4;
}

// The steps that every Order is made from: the place in the ring, scales, products.
template <Sm90GemmConfig kConfig_, typename Load, typename ColumnScales>
class ConsumerWarpgroup {
 public:
  static constexpr Sm90GemmConfig kConfig = kConfig_;
  static constexpr int kSubTiles = kConfig.sub_tiles();
  static constexpr int kSums = kConfig.tile_columns / 2;  // of a sub-tile
  // True if a tile may end before the warpgroup's second sub-tile.
  static constexpr bool kMayEnd = kConfig.loads_sub_tiles() && kConfig.row_sub_tiles() == 2;
  using PartialSums = float[kSums];

  __device__ explicit ConsumerWarpgroup(const SharedMemory<kConfig>& smem)
      : smem_(smem),
        // Shuffles tell the compiler that all lanes agree: descriptors stay in uniform registers.
        // And what comes from one is kept, not worked out anew for each stage.
        warpgroup_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_row_(warpgroup_ * config::kSubTileRows),
        rows_(__shfl_sync(0xFFFFFFFF, (smem.rows(0) + first_row_ * kStageDepth) / 16, 0)),
        columns_(__shfl_sync(0xFFFFFFFF, smem.columns(0) / 16, 0)),
        row_scales(first_row_, static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane_ / 4),
        column_scales(2 * (lane_ % 4)) {}

  __device__ int index() const { return warpgroup_; }
  __device__ int stage() const { return position_.stage; }
  __device__ void advance() { position_.advance(); }

  // True if rows of the warpgroup, from the sub-tile on, exist in the tile.
  __device__ bool has_rows(const Tile& tile, int sub_tile = 0) const {
    return tile.row + first_row_ + sub_tile * kConfig.sub_tile_stride() < tile.row_end;
  }

  // Sub-tiles of the warpgroup that has most.
  static __device__ int turns(const Tile& tile) {
    return kMayEnd && tile.row + kConfig.sub_tile_stride() >= tile.row_end ? 1 : kSubTiles;
  }

  __device__ void begin_tile(const Tile& tile) { row_scales.begin_tile(tile); }
  __device__ void await_operands() const {
    ptx::mbarrier_wait(smem_.full(position_.stage), position_.parity);
    Load::fence();
  }
  __device__ void read_scales(int stage) {
    row_scales.read(smem_, stage);
    column_scales.read(smem_, stage);
  }

  // Starts the products of a sub-tile over one stage: 64 rows and all columns of the tile (of a
  // gated output its gates or its ups).
  __device__ void issue(int stage, int sub_tile, PartialSums& sums, bool accumulate) const {
    constexpr auto kLayout = SharedMemory<kConfig>::kLayout;
    constexpr int kRowSubTiles = kConfig.row_sub_tiles(), kRow = kStageDepth / 16;
    const int row = kConfig.sub_tile_stride() * (sub_tile % kRowSubTiles);
    const int column = sub_tile / kRowSubTiles * kConfig.tile_columns;
    const unsigned rows = rows_ + stage * (kLayout.rows_bytes / 16) + row * kRow;
    const unsigned columns = columns_ + stage * (kLayout.columns_bytes / 16) + column * kRow;
#pragma unroll
    for (int k = 0; k < kStageDepth; k += 32) {
      ptx::WgmmaFp8<kConfig.tile_columns>::template issue<kConfig.rows().type,
                                                          kConfig.columns().type>(
          sums, ptx::descriptor_of(rows + k / 16), ptx::descriptor_of(columns + k / 16),
          accumulate || k > 0);
    }
  }

  // The warp has read the stage: tells the producers of all blocks that fill it.
  __device__ void release(int stage) const {
    constexpr int kSharers = kConfig.multicast_blocks();
    if constexpr (kSharers > 1) {
      ptx::mbarrier_arrive_at_ranks<kSharers>(smem_.empty(stage), lane_);
    } else {
      ptx::mbarrier_arrive_of_lanes(smem_.empty(stage), lane_);
    }
  }

  // A warpgroup without rows of D passes. `meanwhile()`: what others need of it at each stage.
  template <typename Meanwhile>
  __device__ void pass_stages(const Tile& tile, Meanwhile&& meanwhile) {
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      ptx::mbarrier_wait(smem_.full(position_.stage), position_.parity);
      meanwhile();
      __syncwarp();  // one lane speaks for all: none may still wait for this phase
      release(position_.stage);
      position_.advance();
    }
  }

 private:
  const SharedMemory<kConfig>& smem_;
  RingPosition<kConfig.stages> position_;
  int warpgroup_;
  int lane_;
  int first_row_;            // of the warpgroup in the tile
  unsigned rows_, columns_;  // where they lie in the first stage, in units of 16 bytes

 public:
  RowScales<kConfig> row_scales;  // of the stage that was read last
  ColumnScales column_scales;
};

// Sums tiles, each warpgroup by its Order.
template <typename Warpgroup, typename Order>
class Consumer {
 public:
  static constexpr Sm90GemmConfig kConfig = Warpgroup::kConfig;

  // `any_stages`: whether there is anything to sum at all.
  __device__ Consumer(const SharedMemory<kConfig>& smem, bool any_stages)
      : warpgroup_(smem), order_(warpgroup_, any_stages) {}

  // `stages_follow`: whether there is anything to sum after this tile.
  __device__ void sum_tile(const Tile& tile, bool stages_follow, Accumulators<kConfig>& sums) {
#pragma unroll
    for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
#pragma unroll
      for (int i = 0; i < kConfig.tile_columns / 2; ++i) sums[sub_tile][i] = 0.0f;
    }
    if (kConfig.consumer_warpgroups > 1 && !warpgroup_.has_rows(tile)) {
      return order_.pass_tile(warpgroup_, tile, stages_follow);
    }
    warpgroup_.begin_tile(tile);
    order_.add_stages(warpgroup_, tile, stages_follow, sums);
  }

 private:
  Warpgroup warpgroup_;
  Order order_;
};

// When a warpgroup of Promote does what. Free warpgroups multiply a stage once it is there.
template <typename Warpgroup>
struct Free {
  static __device__ void begin(Warpgroup&, bool) {}
  static __device__ void before_stage(Warpgroup& warpgroup) {
    warpgroup.await_operands();
    warpgroup.read_scales(warpgroup.stage());
  }
  static __device__ void before_products(const Warpgroup&) {}
  static __device__ void after_products(Warpgroup&, bool) {}
  static __device__ void pass_sub_tile(const Warpgroup&) {}
  static __device__ void end_of_pass(Warpgroup&, bool) {}
};

// Wait-ahead: waits for the next stage and reads its scales while the last products of this one
// run, so that the promotion alone follows the products. It costs one stage of latency tolerance.
template <typename Warpgroup>
struct WaitAhead : Free<Warpgroup> {
  static __device__ void begin(Warpgroup& warpgroup, bool any_stages) {
    if (any_stages) Free<Warpgroup>::before_stage(warpgroup);
  }
  static __device__ void before_stage(Warpgroup&) {}
  static __device__ void after_products(Warpgroup& warpgroup, bool last_and_more) {
    if (last_and_more) Free<Warpgroup>::before_stage(warpgroup);
  }
  static __device__ void end_of_pass(Warpgroup& warpgroup, bool stages_follow) {
    if (stages_follow) Free<Warpgroup>::before_stage(warpgroup);
  }
};

// Sub-tile after sub-tile of a stage: products into partial sums, and these into the accumulators.
// So the partial sums of one sub-tile, 64 registers at 128 columns, serve all.
template <typename Warpgroup, typename Timing>
class Promote {
 public:
  static constexpr Sm90GemmConfig kConfig = Warpgroup::kConfig;

  __device__ Promote(Warpgroup& warpgroup, bool any_stages) {
    Timing::begin(warpgroup, any_stages);
  }

  __device__ void add_stages(Warpgroup& warpgroup, const Tile& tile, bool stages_follow,
                             Accumulators<kConfig>& sums) {
    if (!Warpgroup::kMayEnd || warpgroup.has_rows(tile, 1)) {
      add_sub_tiles<Warpgroup::kSubTiles>(warpgroup, tile, stages_follow, sums);
    } else {
      add_sub_tiles<1>(warpgroup, tile, stages_follow, sums);
    }
  }

  __device__ void pass_tile(Warpgroup& warpgroup, const Tile& tile, bool stages_follow) {
    const int turns = Warpgroup::turns(tile);
    warpgroup.pass_stages(tile, [&] {
      for (int i = 0; i < turns; ++i) Timing::pass_sub_tile(warpgroup);
    });
    Timing::end_of_pass(warpgroup, stages_follow);
  }

 private:
  // All stages, of the first so many sub-tiles; the others have no rows.
  template <int kCount>
  __device__ void add_sub_tiles(Warpgroup& warpgroup, const Tile& tile, bool stages_follow,
                                Accumulators<kConfig>& sums) {
    const int turns = Warpgroup::turns(tile);
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      add_stage<kCount>(warpgroup, k + kStageDepth < tile.k_end || stages_follow, sums);
      for (int i = kCount; i < turns; ++i) Timing::pass_sub_tile(warpgroup);
    }
  }

  template <int kCount>
  __device__ void add_stage(Warpgroup& warpgroup, bool stages_follow, Accumulators<kConfig>& sums) {
    Timing::before_stage(warpgroup);
    const auto row_scales = warpgroup.row_scales;
    const auto column_scales = warpgroup.column_scales;
    const int stage = warpgroup.stage();
    warpgroup.advance();
#pragma unroll
    for (int sub_tile = 0; sub_tile < kCount; ++sub_tile) {
      const bool last = sub_tile == kCount - 1;
      typename Warpgroup::PartialSums partial, factors;
      Timing::before_products(warpgroup);
      ptx::wgmma_fence();
      warpgroup.issue(stage, sub_tile, partial, false);
      ptx::wgmma_commit();
      Timing::after_products(warpgroup, last && stages_follow);
#pragma unroll
      for (int i = 0; i < Warpgroup::kSums; ++i) {
        factors[i] = factor(row_scales.at(sub_tile, i), column_scales.at(sub_tile, i));
      }
      ptx::wgmma_wait<0>();
      if (last) warpgroup.release(stage);
#pragma unroll
      for (int i = 0; i < Warpgroup::kSums; ++i) sums[sub_tile][i] += partial[i] * factors[i];
    }
  }

  // If each element has a factor of its own, it is multiplied while the tensor core is busy:
  // opaque() keeps the compiler from moving that behind the wait.
  static __device__ float factor(float row_scale, float column_scale) {
    constexpr bool kAllDiffer = kConfig.row_scales() == Granularity::kBlock1x128 &&
                                kConfig.column_scales() == Granularity::kBlock1x128;
    return kAllDiffer ? ptx::opaque(row_scale * column_scale) : row_scale * column_scale;
  }
};

}  // namespace octofold::sm90
