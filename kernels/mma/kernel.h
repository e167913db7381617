// The FP8 GEMM by products of warps, for GPUs 8.9 and 12.x: D[m, n] = A[m, k] · B[n, k]ᵀ, scaled (+
// C) (+ bias), or the codes of a gated activation of two such products; rows of A, or K, may be in
// groups whose sizes are in device memory. It is the shortest GEMM here, and the one to read first.
//
// A block of threads computes a tile of D at a time, 128×128 by eight warps down to 16×64 by four:
// one of a dense product, where there is a block for each, and as many as come of groups, where as
// many blocks as run at one time walk over the tiles that there turn out to be. All threads copy: a
// stage holds 128 values of K of A and B, in units of 16 bytes by `cp.async`, and a scale for each
// row and each column, also where 128 of them share one. The ring has as many stages as fit into
// 99 KB, up to five, and all but one of them are on their way. One __syncthreads a stage says both
// that it has come and that the one before may be overwritten. Each warp multiplies its part of the
// tile by `mma.sync.m16n8k32`, from zero, and adds these partial sums in FP32, times the scales of
// the stage, to its accumulators. Warps store pairs of columns, or codes (gated.h).
//
// Proved right on an H200 as 8.9; speed on 8.9 and 12.x is unmeasured, so that tiles and costs come
// from reasoning (docs/kernels/gemm-mma.md).
#pragma once

#include "kernels/epilogue/finish.h"
#include "kernels/mma/config/config.h"
#include "kernels/mma/gated.h"
#include "kernels/mma/load.h"
#include "kernels/mma/products.h"
#include "kernels/ptx/control.h"
#include "kernels/shared/group_walk.h"
#include "kernels/shared/tile_walk.h"

namespace octofold {
namespace mma {

using config::Tile;

// Sums the tile's stages. `memory`: of config.shared_bytes(), a multiple of 128.
template <MmaGemmConfig kConfig>
__device__ void sum_stages(const config::GemmParams& params, const Tile& tile, int first_row,
                           int first_column, unsigned memory, Sums<kConfig>& sums) {
  constexpr int kAhead = kConfig.stages - 1;
  const StageCopy<kConfig> copy(params, tile);
  const auto stage_at = [&](int number) { return memory + number * kConfig.stage_bytes(); };
  // A group of copies is begun, if an empty one, for each stage, also for those behind the last.
  const auto begin_copies = [&](int number, int k) {
    if (k < tile.k_end) copy.copy(stage_at(number), k);
    ptx::copies_commit();
  };
  // The last tile of rows, or of a group, may have fewer warps of them.
  const bool has_rows = tile.row + first_row < tile.row_end;
  const WarpProducts<kConfig> products(first_row, first_column);
  sums.clear();

#pragma unroll
  for (int number = 0; number < kAhead; ++number) {
    begin_copies(number, tile.k_begin + number * kMmaDepth);
  }
  int multiplied = 0, copied = kAhead;  // numbers of stages in the ring
#pragma unroll 1
  for (int k = tile.k_begin; k < tile.k_end; k += kMmaDepth) {
    ptx::copies_wait<kAhead - 1>();
    __syncthreads();  // all have copied this stage, and multiplied the one before, which is next
    begin_copies(copied, k + kAhead * kMmaDepth);
    if (has_rows) products.add(stage_at(multiplied), sums);
    multiplied = multiplied + 1 == kConfig.stages ? 0 : multiplied + 1;
    copied = copied + 1 == kConfig.stages ? 0 : copied + 1;
  }
}

template <MmaGemmConfig kConfig>
__device__ void multiply_tile(const config::GemmParams& params, const Tile& tile, unsigned memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = warp / kConfig.column_warps * kConfig.warp_rows();
  const int first_column = warp % kConfig.column_warps * kConfig.warp_columns();
  Sums<kConfig> sums;
  sum_stages<kConfig>(params, tile, first_row, first_column, memory, sums);
  if constexpr (kConfig.gated.exists) {
    store_gated<kConfig>(params, tile, first_row, first_column, sums, memory);
  } else {
    store_pairs<kConfig, kConfig.warp_columns()>(
        params, tile, tile.row + first_row + lane / 4, first_column, [](int) { return true; },
        [&](int sub_tile, int place) { return sums.of[sub_tile][place / 4][place % 4]; });
  }
}

}  // namespace mma

template <config::MmaGemmConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_per_multiprocessor)
    mma_gemm_kernel(const __grid_constant__ config::GemmParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const auto block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  config::TileWalk<kConfig> walk(params.work, block, blocks);
  for (; walk.has_tile(); walk.advance()) {
    mma::multiply_tile<kConfig>(params, walk.tile(), ptx::dynamic_shared_memory());
    __syncthreads();  // all have read the ring, which the next tile fills
  }
}

}  // namespace octofold
