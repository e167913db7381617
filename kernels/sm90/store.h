// The tile of D on its way out: from the math warpgroups' registers through shared memory and TMA,
// or straight to global memory.
#pragma once

#include "kernels/config/gemm_params.h"
#include "kernels/epilogue/finish.h"
#include "kernels/gemm/tile_walk.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

// Row of the tile that a math thread's first sum of wave 0 belongs to; the second lies 8 below.
template <GemmConfig kConfig>
__device__ int first_row_of_thread() {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  return warp / 4 * 64 * kConfig.waves() + warp % 4 * 16 + lane / 4;
}

// Any row stride, any alignment, any type: each thread stores pairs of columns.
template <GemmConfig kConfig, int kSums>
__device__ void store_directly(const GemmParams& params, config::TileCoordinate origin,
                               const float (&sums)[kConfig.waves()][kSums]) {
  const int first_row = origin.m + first_row_of_thread<kConfig>();
  const int first_column = origin.n + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    const ColumnTerms<kConfig> columns(params, first_column + 8 * j);
    if (columns.existing == 0) continue;
#pragma unroll
    for (int i = 0; i < 2 * kConfig.waves(); ++i) {
      const int wave = i / 2, half = i % 2;
      const int row = first_row + 64 * wave + 8 * half;
      if (row >= params.m) continue;
      const float* pair = &sums[wave][4 * j + 2 * half];
      store_pair<kConfig.out>(params.out, row * params.out_stride + columns.column,
                              RowTerms<kConfig>(params, row).finish(columns, pair[0], pair[1]),
                              columns.existing == 2);
    }
  }
}

// Writes the tile to shared memory as the boxes that TMA stores: rows of 128, 64 or 32 bytes under
// the swizzle of that width, so that neither stmatrix nor the copy engine meets a bank conflict.
template <GemmConfig kConfig, int kSums>
__device__ void stage_output(const GemmParams& params, const SharedMemory<kConfig>& smem,
                             config::TileCoordinate origin,
                             const float (&sums)[kConfig.waves()][kSums]) {
  constexpr int kBoxColumns = SharedMemory<kConfig>::kLayout.output_box_columns;
  constexpr int kRowBytes = 2 * kBoxColumns;
  constexpr int kChunks = kRowBytes / 16;  // 16 bytes: 8 columns, what the swizzle moves
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = origin.m + first_row_of_thread<kConfig>();
  const int first_column = origin.n + 2 * (lane % 4);
  // stmatrix: lane l addresses row l % 16, of the left or (l ≥ 16) the right 8 of 16 columns.
  const int row_of_lane = first_row_of_thread<kConfig>() - lane / 4 + lane % 16;
  const int swizzle = row_of_lane * kRowBytes / 128 % kChunks;
#pragma unroll
  for (int j = 0; j < kSums / 4; j += 2) {
    // No load moves across this: the assembler would read the terms of all columns ahead, for which
    // there are no registers.
    if constexpr (!kSumsAreFinal<kConfig>) __syncwarp();
    const ColumnTerms<kConfig> left(params, first_column + 8 * j);
    const ColumnTerms<kConfig> right(params, first_column + 8 * (j + 1));
    const int box = 8 * j / kBoxColumns;
    const int chunk = (j % kChunks + lane / 16) ^ swizzle;
    const unsigned target =
        smem.output() + (box * kConfig.tile_m + row_of_lane) * kRowBytes + 16 * chunk;
#pragma unroll
    for (int wave = 0; wave < kConfig.waves(); ++wave) {
      const RowTerms<kConfig> upper(params, first_row + 64 * wave);
      const RowTerms<kConfig> lower(params, first_row + 64 * wave + 8);
      const float* pairs = &sums[wave][4 * j];
      const float2 upper_left = upper.finish(left, pairs[0], pairs[1]);
      const float2 lower_left = lower.finish(left, pairs[2], pairs[3]);
      const float2 upper_right = upper.finish(right, pairs[4], pairs[5]);
      const float2 lower_right = lower.finish(right, pairs[6], pairs[7]);
      ptx::store_matrices(target + 64 * wave * kRowBytes,
                          pack_pair<kConfig.out>(upper_left.x, upper_left.y),
                          pack_pair<kConfig.out>(lower_left.x, lower_left.y),
                          pack_pair<kConfig.out>(upper_right.x, upper_right.y),
                          pack_pair<kConfig.out>(lower_right.x, lower_right.y));
    }
  }
}

// One thread of the loading warpgroup: the math warpgroups go on with the next tile meanwhile.
template <GemmConfig kConfig>
__device__ void store_staged_tiles(const GemmParams& params, const SharedMemory<kConfig>& smem) {
  constexpr int kBoxColumns = SharedMemory<kConfig>::kLayout.output_box_columns;
  constexpr int kBoxBytes = kConfig.tile_m * kBoxColumns * size_of(kConfig.out);
  unsigned parity = 0;
  for (TileWalk<kConfig> walk(params); walk.has_tile(); walk.advance(), parity ^= 1) {
    const config::TileCoordinate origin = walk.origin();
    ptx::mbarrier_wait(smem.output_full(), parity);
    for (int box = 0; box < kConfig.tile_n / kBoxColumns; ++box) {
      ptx::tma_store(&params.out_map, smem.output() + box * kBoxBytes, origin.n + box * kBoxColumns,
                     origin.m);
    }
    ptx::tma_store_commit();
    ptx::tma_store_wait_read();
    ptx::mbarrier_arrive(smem.output_empty());
  }
}

}  // namespace octofold::sm90
