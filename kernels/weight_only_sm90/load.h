// The producers keep the ring filled: one thread asks TMA for codes and rows of x, a warp copies
// scales word by word, so that any layout of them will do.
#pragma once

#include "kernels/ptx/tma.h"
#include "kernels/weight_only/walk.h"
#include "kernels/weight_only_sm90/pipeline.h"

namespace octofold::weight_only_sm90 {

// Arrivals at `full`.
template <Sm90WeightOnlyConfig kConfig>
inline constexpr unsigned kProducers = 1 + (kConfig.scales() > 0 ? 32 : 0);

// Calls load(stage, tile, k) for each stage, as soon as it is empty.
template <Sm90WeightOnlyConfig kConfig, typename Load>
__device__ void for_each_stage(const Sm90WeightOnlyParams& params,
                               const SharedMemory<kConfig>& smem, Load&& load) {
  config::RingPosition<kConfig.stages> ring;
  for (Walk<kConfig> walk(params); walk.has_tile(); walk.advance()) {
    const Tile tile = walk.tile();
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k += kScaleBlock) {
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
      load(ring.stage, tile, k);
      ring.advance();
    }
  }
}

// One thread; of groups one warp, whose first lane asks.
template <Sm90WeightOnlyConfig kConfig>
__device__ void load_operands(const Sm90WeightOnlyParams& params,
                              const SharedMemory<kConfig>& smem) {
  for_each_stage(params, smem, [&](int stage, const Tile& tile, int k) {
    if (kConfig.has_groups() && threadIdx.x % 32 != 0) return;
    const unsigned full = smem.full(stage), w = smem.w(stage);
    const int column = tile.operand_column;
    ptx::mbarrier_arrive_expect_bytes(full, kConfig.w_bytes() + 2 * kConfig.x_half_bytes());
    // W of groups lie one below another.
    if constexpr (kConfig.transposed) {
      const int w_row = tile.group * params.work.depth + k;
#pragma unroll
      for (int i = 0; i < kConfig.tile_columns; i += 128) {
        ptx::tma_load(w + i * kScaleBlock, &params.w_map, full, column + i, w_row);
      }
    } else {
      ptx::tma_load(w, &params.w_map, full, k, tile.group * tile.column_end + column);
    }
    ptx::tma_load(smem.x(stage, 0), &params.x_map, full, k, tile.operand_row);
    ptx::tma_load(smem.x(stage, 1), &params.x_map, full, k + 64, tile.operand_row);
  });
}

// One warp: of each stage the scales of the tile's columns or, for each 128 columns, factors of 128
// of the depth. What lies behind the last of either has its scale, which nobody uses.
template <Sm90WeightOnlyConfig kConfig>
__device__ void load_scales(const Sm90WeightOnlyParams& params, const SharedMemory<kConfig>& smem) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for_each_stage(params, smem, [&](int stage, const Tile& tile, int k) {
    const config::WeightOnlyScale scale = weight_only::scale_of(params, tile.group);
#pragma unroll 1
    for (int i = lane; i < kConfig.scales(); i += 32) {
      const int of_column = kConfig.depth_factors ? i / kScaleBlock * 128 : i;
      const int column = min(tile.operand_column + of_column, tile.column_end - 1);
      const int of_depth =
          kConfig.depth_factors ? min(k + i % kScaleBlock, params.work.depth - 1) : k / kScaleBlock;
      ptx::copy_word_async(
          smem.scales(stage) + 4 * i,
          scale.data + (column >> scale.shift) * scale.stride + of_depth * scale.depth_stride);
    }
    ptx::mbarrier_arrive_after_copies(smem.full(stage));
  });
}

}  // namespace octofold::weight_only_sm90
