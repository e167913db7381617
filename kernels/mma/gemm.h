// The FP8 GEMM by products of warps, for GPUs 8.9 and 12.x: D[m, n] = A[m, k] · B[n, k]ᵀ, scaled (+
// C) (+ bias). It is the shortest GEMM here, and the one to read first.
//
// A block of threads computes one tile of D, 128×128 by eight warps down to 16×64 by four, and
// ends. All threads copy: a stage holds 128 values of K of A and B, in units of 16 bytes by
// `cp.async`, and a scale for each row and each column, also where 128 of them share one. The ring
// has as many stages as fit into 99 KB, up to five, and all but one of them are on their way. One
// __syncthreads a stage says both that it has come and that the one before may be overwritten. Each
// warp multiplies its part of the tile by `mma.sync.m16n8k32`, from zero, and adds these partial
// sums in FP32, times the scales of the stage, to its accumulators. Warps store pairs of columns.
//
// Proved right on an H200 as 8.9; speed on 8.9 and 12.x is unmeasured, so that tiles and costs come
// from reasoning (docs/kernels/gemm-mma.md).
#pragma once

#include "kernels/epilogue/store_pairs.h"
#include "kernels/mma/config/gemm.h"
#include "kernels/mma/load.h"
#include "kernels/mma/products.h"
#include "kernels/ptx/control.h"
#include "kernels/shared/tile_schedule.h"

namespace octofold {
namespace mma {

using config::Tile;

// Tile number blockIdx.x of D.
template <MmaGemmConfig kConfig>
__device__ Tile tile_of_block(const config::WorkParams& work) {
  const config::TileCoordinate at =
      config::tile_schedule(work.rows, work.columns, kConfig.tile_rows, kConfig.tile_columns,
                            kConfig.group_m)
          .at(static_cast<int>(blockIdx.x));
  const int row = at.m * kConfig.tile_rows, column = at.n * kConfig.tile_columns;
  return {.group = 0,
          .operand_row = row,
          .operand_column = column,
          .row = row,
          .column = column,
          .row_end = work.rows,
          .column_end = work.columns,
          .k_begin = 0,
          .k_end = work.depth};
}

// `memory`: of config.shared_bytes(), a multiple of 128.
template <MmaGemmConfig kConfig>
__device__ void multiply_tile(const config::GemmParams& params, const Tile& tile, unsigned memory) {
  constexpr int kAhead = kConfig.stages - 1;
  const OperandCopy<kConfig, kConfig.tile_rows> rows(params.rows, tile.row, tile.row_end,
                                                     tile.k_end);
  const OperandCopy<kConfig, kConfig.tile_columns> columns(params.columns, tile.column,
                                                           tile.column_end, tile.k_end);
  const auto stage_at = [&](int number) { return memory + number * kConfig.stage_bytes(); };
  // A group of copies is begun, if an empty one, for each stage, also for those behind the last.
  const auto begin_copies = [&](int number, int k) {
    if (k < tile.k_end) {
      const unsigned stage = stage_at(number);
      rows.copy(stage, k);
      columns.copy(stage + kConfig.tile_rows * kMmaDepth, k);
      const unsigned scales = stage + kConfig.scales_offset();
      copy_scales<kConfig, kConfig.tile_rows, kConfig.form.a.scales>(params.rows.scale, scales,
                                                                     tile.row, tile.row_end, k);
      copy_scales<kConfig, kConfig.tile_columns, kConfig.form.b.scales>(
          params.columns.scale, scales + 4 * kConfig.row_scales(), tile.column, tile.column_end, k);
    }
    ptx::copies_commit();
  };

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = warp / kConfig.column_warps * kConfig.warp_rows();
  const int first_column = warp % kConfig.column_warps * kConfig.warp_columns();
  const WarpProducts<kConfig> products(first_row, first_column);
  Sums<kConfig> sums;
  sums.clear();

#pragma unroll
  for (int number = 0; number < kAhead; ++number) begin_copies(number, number * kMmaDepth);
  int multiplied = 0, copied = kAhead;  // numbers of stages in the ring
#pragma unroll 1
  for (int k = 0; k < tile.k_end; k += kMmaDepth) {
    ptx::copies_wait<kAhead - 1>();
    __syncthreads();  // all have copied this stage, and multiplied the one before, which is next
    begin_copies(copied, k + kAhead * kMmaDepth);
    products.add(stage_at(multiplied), sums);
    multiplied = multiplied + 1 == kConfig.stages ? 0 : multiplied + 1;
    copied = copied + 1 == kConfig.stages ? 0 : copied + 1;
  }

  store_pairs<kConfig, kConfig.warp_columns()>(
      params, tile, tile.row + first_row + lane / 4, first_column, [](int) { return true; },
      [&](int sub_tile, int place) { return sums.of[sub_tile][place / 4][place % 4]; });
}

}  // namespace mma

template <config::MmaGemmConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_per_multiprocessor)
    mma_gemm_kernel(const __grid_constant__ config::GemmParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  mma::multiply_tile<kConfig>(params, mma::tile_of_block<kConfig>(params.work),
                              ptx::dynamic_shared_memory());
}

}  // namespace octofold
