// The producers: operands into the stages of the ring, and their scales.
#pragma once

#include "kernels/config/sm90_gemm.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90/pipeline.h"
#include "kernels/sm90/shared_memory.h"
#include "kernels/sm90/walk.h"

namespace octofold::sm90 {

using config::kStageDepth;
using config::Sm90GemmConfig;
using config::Sm90GemmParams;
using config::Tile;

// Calls load(stage, tile, k) for each stage that this block is to fill, when it is empty.
template <Sm90GemmConfig kConfig, typename Load>
__device__ void for_each_stage(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                               Load&& load) {
  RingPosition<kConfig.stages> position;
  for (auto walk = walk_of<kConfig>(params); walk.has_tile(); walk.advance()) {
    const Tile tile = walk.tile();
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      ptx::mbarrier_wait(smem.empty(position.stage), position.parity ^ 1);
      load(position.stage, tile, k);
      position.advance();
    }
  }
}

// One thread. In a cluster each block loads its share of what all of them need, and multicasts it.
template <Sm90GemmConfig kConfig>
__device__ void load_operands_by_tma(const Sm90GemmParams& params,
                                     const SharedMemory<kConfig>& smem) {
  constexpr int kShareOfRows = kConfig.tile_rows / kConfig.cluster_columns;
  constexpr int kShareOfColumns = kConfig.tile_columns / kConfig.cluster_rows;
  constexpr unsigned short kEveryBlock = (1 << kConfig.cluster_size()) - 1;
  const int rank = kConfig.cluster_size() > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
  const unsigned bytes = params.rows_box * kConfig.cluster_columns * kStageDepth +
                         SharedMemory<kConfig>::kLayout.columns_bytes;

  for_each_stage(params, smem, [&](int stage, const Tile& tile, int k) {
    const unsigned full = smem.full(stage);
    ptx::mbarrier_arrive_expect_bytes(full, bytes);
    if constexpr (kConfig.cluster_columns > 1) {
      const int row = rank * kShareOfRows;
      ptx::tma_load_multicast(smem.rows(stage) + row * kStageDepth, &params.rows_map, full, k,
                              tile.operand_row + row, kEveryBlock);
    } else {
      ptx::tma_load(smem.rows(stage), &params.rows_map, full, k, tile.operand_row);
    }
    if constexpr (kConfig.cluster_rows > 1) {
      const int row = rank * kShareOfColumns;
      ptx::tma_load_multicast(smem.columns(stage) + row * kStageDepth, &params.columns_map, full, k,
                              tile.operand_column + row, kEveryBlock);
    } else {
      ptx::tma_load(smem.columns(stage), &params.columns_map, full, k, tile.operand_column);
    }
  });
}

// Of an operand's rows: the first of a tile, and where they end.
struct RowRange {
  int first;
  int end;
};

__device__ inline RowRange rows_of(const Tile& tile) {
  return {tile.operand_row, tile.row_end + (tile.operand_row - tile.row)};
}

__device__ inline RowRange columns_of(const Tile& tile) {
  return {tile.operand_column, tile.column_end + (tile.operand_column - tile.column)};
}

// The scales of one operand that vary along K, word by word: any layout of the scale tensor will
// do, and one in which neighbouring rows are neighbours in memory is read in full lines. One warp.
// It has about as long for a stage as the tensor cores have, so that only the copies themselves are
// left in its loop. `range_of(tile)`: the operand's rows of a tile, `target(stage)`: where their
// scales go. Units beyond the last get the last one's scale: their products are not stored.
template <Granularity kScales, int kExtent, Sm90GemmConfig kConfig, typename RangeOf,
          typename Target>
__device__ void load_scales(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                            const config::ScaleParams& scale, RangeOf&& range_of, Target&& target) {
  constexpr int kUnits = config::scales_per_stage(kScales, kExtent);
  constexpr int kRowsOfUnit = config::rows_per_scale(kScales);
  static_assert(kRowsOfUnit > 0, "a granularity that varies along K has scales in each stage");
  constexpr int kUnitsOfLane = (kUnits + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<kConfig.stages> position;
  for (auto walk = walk_of<kConfig>(params); walk.has_tile(); walk.advance()) {
    const Tile tile = walk.tile();
    const RowRange rows = range_of(tile);
    const int first = rows.first / kRowsOfUnit + lane;
    const int last = (rows.end - 1) / kRowsOfUnit;
    const float* sources[kUnitsOfLane];
#pragma unroll
    for (int i = 0; i < kUnitsOfLane; ++i) {
      sources[i] = scale.data + min(first + 32 * i, last) * scale.row_stride +
                   tile.k_begin / kScaleBlock * scale.k_stride;
    }
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      ptx::mbarrier_wait(smem.empty(position.stage), position.parity ^ 1);
      const unsigned destination = target(position.stage) + 4 * lane;
#pragma unroll
      for (int i = 0; i < kUnitsOfLane; ++i) {
        if (kUnits % 32 == 0 || lane + 32 * i < kUnits) {
          ptx::copy_word_async(destination + 4 * 32 * i, sources[i]);
        }
        sources[i] += scale.k_stride;
      }
      ptx::mbarrier_arrive_after_copies(smem.full(position.stage));
      position.advance();
    }
  }
}

template <Sm90GemmConfig kConfig>
__device__ void load_row_scales(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
  if constexpr (varies_along_k(kConfig.rows().scales)) {
    load_scales<kConfig.rows().scales, kConfig.tile_rows>(
        params, smem, params.rows.scale, rows_of,
        [&](int stage) { return smem.row_scales(stage); });
  }
}

template <Sm90GemmConfig kConfig>
__device__ void load_column_scales(const Sm90GemmParams& params,
                                   const SharedMemory<kConfig>& smem) {
  if constexpr (varies_along_k(kConfig.columns().scales)) {
    load_scales<kConfig.columns().scales, kConfig.tile_columns>(
        params, smem, params.columns.scale, columns_of,
        [&](int stage) { return smem.column_scales(stage); });
  }
}

// 16 bytes from an address without alignment. Words are read whole where another one follows in
// the row, as the shift needs it; at the end of a row bytes are.
__device__ inline uint4 gather_16_bytes(const unsigned char* source, int existing) {
  unsigned words[5] = {};
  if (existing >= 20) {
    const unsigned long long address = reinterpret_cast<unsigned long long>(source);
    const unsigned* aligned = reinterpret_cast<const unsigned*>(address & ~3ull);
    for (int i = 0; i < 5; ++i) words[i] = aligned[i];
    const unsigned shift = 8 * (address & 3);
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], shift);
  } else {
    for (int i = 0; i < 16; ++i) {
      if (i < existing) words[i / 4] |= static_cast<unsigned>(source[i]) << (8 * (i % 4));
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// What TMA would do, for rows of any address and stride: two warps copy and swizzle.
template <Sm90GemmConfig kConfig>
__device__ void load_operands_by_threads(const Sm90GemmParams& params,
                                         const SharedMemory<kConfig>& smem, int thread) {
  constexpr int kChunksOfRow = kStageDepth / 16;
  const auto copy_rows = [&](unsigned target, const config::OperandParams& operand, int extent,
                             RowRange rows, int k, int k_end) {
#pragma unroll 1  // this warpgroup has few registers
    for (int i = thread; i < extent * kChunksOfRow;
         i += static_cast<int>(SharedMemory<kConfig>::kCopyThreads)) {
      const int in_tile = i / kChunksOfRow, chunk = i % kChunksOfRow;
      const int row = rows.first + in_tile, column = k + 16 * chunk;
      const int existing = row < rows.end ? k_end - column : 0;
      const unsigned char* source =
          operand.data + (existing > 0 ? row * operand.stride + column : 0);
      ptx::store_shared(target + in_tile * kStageDepth + 16 * (chunk ^ (in_tile % 8)),
                        gather_16_bytes(source, existing));
    }
  };
  for_each_stage(params, smem, [&](int stage, const Tile& tile, int k) {
    copy_rows(smem.rows(stage), params.rows, kConfig.tile_rows, rows_of(tile), k, tile.k_end);
    copy_rows(smem.columns(stage), params.columns, kConfig.tile_columns, columns_of(tile), k,
              tile.k_end);
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(smem.full(stage));
  });
}

}  // namespace octofold::sm90
