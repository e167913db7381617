// The tile of D on its way out: from the math warpgroups' registers through shared memory and TMA,
// or straight to global memory.
#pragma once

#include "kernels/config/sm90_gemm.h"
#include "kernels/epilogue/finish.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90/math.h"
#include "kernels/sm90/shared_memory.h"
#include "kernels/sm90/walk.h"

namespace octofold::sm90 {

// Row of the tile that a math thread's first sum of sub-tile 0 belongs to; the second lies 8 below.
template <Sm90GemmConfig kConfig>
__device__ int first_row_of_thread() {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  return warp / 4 * 64 * kConfig.sub_tiles() + warp % 4 * 16 + lane / 4;
}

// Any row stride, any alignment, any type: each thread stores pairs of columns.
template <Sm90GemmConfig kConfig>
__device__ void store_directly(const Sm90GemmParams& params, const Tile& tile,
                               const Sums<kConfig>& sums) {
  const int first_row = tile.row + first_row_of_thread<kConfig>();
  const int first_column = tile.column + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int j = 0; j < kConfig.tile_columns / 8; ++j) {
    const ColumnTerms<kConfig> columns(params, tile, first_column + 8 * j);
    if (columns.existing == 0) break;
#pragma unroll
    for (int i = 0; i < 2 * kConfig.sub_tiles(); ++i) {
      const int sub_tile = i / 2, half = i % 2;
      const int row = first_row + 64 * sub_tile + 8 * half;
      if (row >= tile.row_end) break;
      const float* pair = &sums[sub_tile][4 * j + 2 * half];
      store_pair<kConfig.form.out>(
          params.out, row * params.out_stride + columns.column,
          RowTerms<kConfig>(params, tile, row).finish(columns, pair[0], pair[1]),
          columns.existing == 2);
    }
  }
}

// Writes the tile to shared memory as the boxes that TMA stores: rows of 128, 64 or 32 bytes under
// the swizzle of that width, so that neither stmatrix nor the copy engine meets a bank conflict.
template <Sm90GemmConfig kConfig>
__device__ void stage_output(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                             const Tile& tile, const Sums<kConfig>& sums) {
  constexpr int kBoxColumns = SharedMemory<kConfig>::kLayout.output_box_columns;
  constexpr int kRowBytes = 2 * kBoxColumns;
  constexpr int kChunks = kRowBytes / 16;  // 16 bytes: 8 columns, what the swizzle moves
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = tile.row + first_row_of_thread<kConfig>();
  const int first_column = tile.column + 2 * (lane % 4);
  // stmatrix: lane l addresses row l % 16, of the left or (l ≥ 16) the right 8 of 16 columns.
  const int row_of_lane = first_row_of_thread<kConfig>() - lane / 4 + lane % 16;
  const int swizzle = row_of_lane * kRowBytes / 128 % kChunks;
#pragma unroll
  for (int j = 0; j < kConfig.tile_columns / 8; j += 2) {
    // No load moves across this: the assembler would read the terms of all columns ahead, for which
    // there are no registers.
    if constexpr (!kSumsAreFinal<kConfig>) __syncwarp();
    const ColumnTerms<kConfig> left(params, tile, first_column + 8 * j);
    const ColumnTerms<kConfig> right(params, tile, first_column + 8 * (j + 1));
    const int box = 8 * j / kBoxColumns;
    const int chunk = (j % kChunks + lane / 16) ^ swizzle;
    const unsigned target =
        smem.output() + (box * kConfig.tile_rows + row_of_lane) * kRowBytes + 16 * chunk;
#pragma unroll
    for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
      const RowTerms<kConfig> upper(params, tile, first_row + 64 * sub_tile);
      const RowTerms<kConfig> lower(params, tile, first_row + 64 * sub_tile + 8);
      const float* pairs = &sums[sub_tile][4 * j];
      const float2 upper_left = upper.finish(left, pairs[0], pairs[1]);
      const float2 lower_left = lower.finish(left, pairs[2], pairs[3]);
      const float2 upper_right = upper.finish(right, pairs[4], pairs[5]);
      const float2 lower_right = lower.finish(right, pairs[6], pairs[7]);
      ptx::store_matrices(target + 64 * sub_tile * kRowBytes,
                          pack_pair<kConfig.form.out>(upper_left.x, upper_left.y),
                          pack_pair<kConfig.form.out>(lower_left.x, lower_left.y),
                          pack_pair<kConfig.form.out>(upper_right.x, upper_right.y),
                          pack_pair<kConfig.form.out>(lower_right.x, lower_right.y));
    }
  }
}

// One thread of the loading warpgroup: the math warpgroups go on with the next tile meanwhile.
template <Sm90GemmConfig kConfig>
__device__ void store_staged_tiles(const Sm90GemmParams& params,
                                   const SharedMemory<kConfig>& smem) {
  constexpr int kBoxColumns = SharedMemory<kConfig>::kLayout.output_box_columns;
  constexpr int kBoxBytes = kConfig.tile_rows * kBoxColumns * size_of(kConfig.form.out);
  unsigned parity = 0;
  for (auto walk = walk_of<kConfig>(params); walk.has_tile(); walk.advance(), parity ^= 1) {
    const Tile tile = walk.tile();
    ptx::mbarrier_wait(smem.output_full(), parity);
    for (int box = 0; box < kConfig.tile_columns / kBoxColumns; ++box) {
      ptx::tma_store(&params.out_map, smem.output() + box * kBoxBytes,
                     tile.column + box * kBoxColumns, tile.row);
    }
    ptx::tma_store_commit();
    ptx::tma_store_wait_read();
    ptx::mbarrier_arrive(smem.output_empty());
  }
}

}  // namespace octofold::sm90
