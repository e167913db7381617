// The producers: operands into the stages of the ring, and their scales.
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90/config/gemm.h"
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

// Rows of a tile that a group of A's does not fill: as many boxes of a sub-tile as hold them, of
// which the blocks that share them load those of their part.
template <Sm90GemmConfig kConfig>
__device__ void load_last_sub_tiles(const Sm90GemmParams& params, unsigned target, unsigned full,
                                    int k, int first_row, int sub_tiles, int rank) {
  constexpr int kRows = config::kSubTileRows, kSharers = kConfig.cluster_columns;
  constexpr int kShare = kConfig.tile_rows / kRows / kSharers;
  const int begin = kSharers > 1 ? rank * kShare : 0;
#pragma unroll 1
  for (int i = begin; i < min(begin + kShare, sub_tiles); ++i) {
    const unsigned box = target + i * kRows * kStageDepth;
    if constexpr (kSharers > 1) {
      ptx::tma_load_multicast(box, &params.last_rows_map, full, k, first_row + i * kRows,
                              (1 << kSharers) - 1);
    } else {
      ptx::tma_load(box, &params.last_rows_map, full, k, first_row + i * kRows);
    }
  }
}

// One thread. In a cluster each block loads its share of what all of them need, and multicasts it.
template <Sm90GemmConfig kConfig>
__device__ void load_operands_by_tma(const Sm90GemmParams& params,
                                     const SharedMemory<kConfig>& smem) {
  constexpr int kShareOfRows = kConfig.tile_rows / kConfig.cluster_columns;
  constexpr int kShareOfColumns = kConfig.tile_columns / kConfig.cluster_rows;
  constexpr int kSharers = kConfig.cluster_rows * kConfig.cluster_columns;
  constexpr unsigned short kEveryBlock = (1 << kSharers) - 1;
  const int rank = kSharers > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
  constexpr auto kLayout = SharedMemory<kConfig>::kLayout;

  for_each_stage(params, smem, [&](int stage, const Tile& tile, int k) {
    const unsigned full = smem.full(stage);
    const int existing = tile.row_end - tile.row;
    const bool is_last = params.last_rows != 0 && existing < kConfig.tile_rows;
    const int sub_tiles = config::sub_tiles_of(existing);  // of a group's last tile
    const int last_rows =
        kConfig.loads_sub_tiles() ? sub_tiles * config::kSubTileRows : params.last_rows;
    const unsigned rows_bytes = is_last ? last_rows * kStageDepth : kLayout.rows_bytes;
    constexpr unsigned kColumnsBytes = kConfig.dynamic.exists ? 0 : kLayout.columns_bytes;
    ptx::mbarrier_arrive_expect_bytes(full, rows_bytes + kColumnsBytes);
    if (kConfig.loads_sub_tiles() && is_last) {
      load_last_sub_tiles<kConfig>(params, smem.rows(stage), full, k, tile.operand_row, sub_tiles,
                                   rank);
    } else if constexpr (kConfig.cluster_columns > 1) {
      const int row = rank * kShareOfRows;
      ptx::tma_load_multicast(smem.rows(stage) + row * kStageDepth, &params.rows_map, full, k,
                              tile.operand_row + row, kEveryBlock);
    } else {
      ptx::tma_load(smem.rows(stage), is_last ? &params.last_rows_map : &params.rows_map, full, k,
                    tile.operand_row);
    }
    if constexpr (kConfig.dynamic.exists) return;  // threads cast them
    // Of a gated output the gates, then the ups, which begin where the gates' rows end.
#pragma unroll
    for (int part = 0; part < kConfig.operand_columns() / kConfig.tile_columns; ++part) {
      const unsigned target = smem.columns(stage) + part * kConfig.tile_columns * kStageDepth;
      const int column = tile.operand_column + part * tile.column_end;
      if constexpr (kConfig.cluster_rows > 1) {
        const int row = rank * kShareOfColumns;
        ptx::tma_load_multicast(target + row * kStageDepth, &params.columns_map, full, k,
                                column + row, kEveryBlock);
      } else {
        ptx::tma_load(target, &params.columns_map, full, k, column);
      }
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

// Rows as an operand's scales count them: those of B from its group's first on.
template <Sm90GemmConfig kConfig>
__device__ RowRange scaled_rows_of(const Tile& tile) {
  return kConfig.swapped ? RowRange{tile.row, tile.row_end} : rows_of(tile);
}
template <Sm90GemmConfig kConfig>
__device__ RowRange scaled_columns_of(const Tile& tile) {
  return kConfig.swapped ? columns_of(tile) : RowRange{tile.column, tile.column_end};
}

// Scales of an operand that a tile takes: those of `first`, and of rows so far apart, and how many
// there are, perhaps more than the tile holds.
struct ScaleRange {
  int first;
  int distance;
  int count;
};

// Of a stage that has a scale for each unit of kHeld.
template <Granularity kHeld>
__device__ ScaleRange scales_of(const RowRange& rows) {
  constexpr int kRows = config::rows_per_scale(kHeld);
  static_assert(kRows > 0, "a granularity that varies along K has scales in each stage");
  const int first = rows.first / kRows;
  return {first * kRows, kRows, (rows.end - 1) / kRows + 1 - first};
}

// The scales of one operand that vary along K, word by word: any layout of the scale tensor will
// do, and one in which neighbouring rows are neighbours in memory is read in full lines. One warp.
// It has about as long for a stage as the tensor cores have, so that only the copies themselves are
// left in its loop. In memory kRows rows share a scale. `scales_of(tile)`: those of a tile, of
// which a stage holds kUnits; `target(stage)`: where they go, in the order that `place(unit)`
// tells. Nothing is copied for units beyond the last: their products are not stored. (Copies of the
// last one's scale, all from one address, made a stage up to a quarter longer.)
template <int kUnits, int kRows, Sm90GemmConfig kConfig, typename ScalesOf, typename Target,
          typename Place>
__device__ void load_scales(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                            const config::ScaleParams& scale, ScalesOf&& scales_of, Target&& target,
                            Place&& place) {
  constexpr int kUnitsOfLane = (kUnits + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= kUnits) return;
  RingPosition<kConfig.stages> position;
  for (auto walk = walk_of<kConfig>(params); walk.has_tile(); walk.advance()) {
    const Tile tile = walk.tile();
    const ScaleRange range = scales_of(tile);
    const int first = range.first + lane * range.distance;
    const int behind = min(range.count, kUnits) - 1 - lane;  // units of the tile behind this one
    const float* sources[kUnitsOfLane];
#pragma unroll
    for (int i = 0; i < kUnitsOfLane; ++i) {
      sources[i] = scale.data + tile.group * scale.group_stride +
                   (first + 32 * i * range.distance) / kRows * scale.row_stride +
                   tile.k_begin / kScaleBlock * scale.k_stride;
    }
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      ptx::mbarrier_wait(smem.empty(position.stage), position.parity ^ 1);
      const unsigned destination = target(position.stage) + 4 * place(lane);
#pragma unroll
      for (int i = 0; i < kUnitsOfLane; ++i) {
        if (32 * i <= behind) ptx::copy_word_async(destination + 4 * place(32 * i), sources[i]);
        sources[i] += scale.k_stride;
      }
      ptx::mbarrier_arrive_after_copies(smem.full(position.stage));
      position.advance();
    }
  }
}

template <Sm90GemmConfig kConfig>
__device__ void load_row_scales(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
  constexpr Granularity kScales = kConfig.rows().scales, kHeld = kConfig.row_scales();
  if constexpr (varies_along_k(kScales)) {
    load_scales<config::scales_per_stage(kHeld, kConfig.tile_rows),
                config::rows_per_scale(kScales)>(
        params, smem, params.rows.scale,
        [](const Tile& tile) { return scales_of<kHeld>(scaled_rows_of<kConfig>(tile)); },
        [&](int stage) { return smem.row_scales(stage); }, [](int row) { return row; });
  }
}

template <Sm90GemmConfig kConfig>
__device__ void load_column_scales(const Sm90GemmParams& params,
                                   const SharedMemory<kConfig>& smem) {
  constexpr Granularity kScales = kConfig.columns().scales, kHeld = kConfig.column_scales();
  if constexpr (varies_along_k(kScales) && !kConfig.dynamic.exists) {
    load_scales<kConfig.column_scales_per_stage(), config::rows_per_scale(kScales)>(
        params, smem, params.columns.scale,
        [](const Tile& tile) {
          if constexpr (kConfig.gated.exists) {  // the gates' block and the ups'
            return ScaleRange{tile.column, tile.column_end, tile.column < tile.column_end ? 2 : 0};
          } else {
            return scales_of<kHeld>(scaled_columns_of<kConfig>(tile));
          }
        },
        [&](int stage) { return smem.column_scales(stage); },
        [](int column) {
          constexpr config::ColumnScaleOrder kOrder(kConfig.tile_columns);
          constexpr bool kOwn = kHeld == Granularity::kBlock1x128;
          return kOwn ? kOrder.place(column) : column;
        });
  }
}

}  // namespace octofold::sm90
