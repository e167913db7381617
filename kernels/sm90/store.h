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
  const int first_column = origin.n + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int wave = 0; wave < kConfig.waves(); ++wave) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = origin.m + first_row_of_thread<kConfig>() + 64 * wave + 8 * half;
      if (row >= params.m) continue;
      const RowFinisher<kConfig> finish(params, row);
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j) {
        const int column = first_column + 8 * j;
        if (column >= params.n) continue;
        const float2 values =
            finish(column, sums[wave][4 * j + 2 * half], sums[wave][4 * j + 2 * half + 1]);
        store_pair<kConfig.out>(params.out, row * params.out_stride + column, values,
                                column + 1 < params.n);
      }
    }
  }
}

// Writes the tile to shared memory as the boxes that TMA stores: rows of 128, 64 or 32 bytes under
// the swizzle of that width, so that neither stmatrix nor the copy engine meets a bank conflict.
template <GemmConfig kConfig, int kSums>
__device__ void stage_output(const GemmParams& params, const SharedMemory<kConfig>& smem,
                             config::TileCoordinate origin,
                             const float (&sums)[kConfig.waves()][kSums]) {
  constexpr int kBoxColumns = smem.kLayout.output_box_columns;
  constexpr int kRowBytes = 2 * kBoxColumns;
  constexpr int kChunks = kRowBytes / 16;  // 16 bytes: 8 columns, what the swizzle moves
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // stmatrix: lane l addresses row l % 16, of the left or (l ≥ 16) the right 8 of 16 columns.
  const int row_of_lane = first_row_of_thread<kConfig>() - lane / 4 + lane % 16;
  const int swizzle = row_of_lane * kRowBytes / 128 % kChunks;
#pragma unroll
  for (int wave = 0; wave < kConfig.waves(); ++wave) {
    const int row = origin.m + first_row_of_thread<kConfig>() + 64 * wave;
    const RowFinisher<kConfig> upper(params, row), lower(params, row + 8);
    const unsigned row_address = smem.output() + (row_of_lane + 64 * wave) * kRowBytes;
#pragma unroll
    for (int j = 0; j < kSums / 4; j += 2) {
      unsigned words[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = origin.n + 8 * (j + i) + 2 * (lane % 4);
        const float* pair = &sums[wave][4 * (j + i)];
        const float2 above = upper(column, pair[0], pair[1]);
        const float2 below = lower(column, pair[2], pair[3]);
        words[2 * i] = pack_pair<kConfig.out>(above.x, above.y);
        words[2 * i + 1] = pack_pair<kConfig.out>(below.x, below.y);
      }
      const int box = 8 * j / kBoxColumns;
      const int chunk = (j % kChunks + lane / 16) ^ swizzle;
      ptx::store_matrices(row_address + box * kConfig.tile_m * kRowBytes + 16 * chunk, words[0],
                          words[1], words[2], words[3]);
    }
  }
}

// One thread of the loading warpgroup: the math warpgroups go on with the next tile meanwhile.
template <GemmConfig kConfig>
__device__ void store_staged_tiles(const GemmParams& params, const SharedMemory<kConfig>& smem) {
  constexpr int kBoxColumns = smem.kLayout.output_box_columns;
  constexpr int kBoxBytes = kConfig.tile_m * kBoxColumns * config::size_of(kConfig.out);
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
