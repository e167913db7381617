// The ring of stages between the producers and the consumers; the walk over tiles that all make.
#pragma once

#include "kernels/shared/stages.h"
#include "kernels/shared/tile_walk.h"
#include "kernels/sm90/config/checks.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

using config::kStageDepth;
using config::RingPosition;
using config::Sm90GemmParams;
using config::Tile;

// The tiles of this block of threads.
template <Sm90GemmConfig kConfig>
__device__ config::TileWalk<kConfig> walk_of(const Sm90GemmParams& params) {
  return {params.work, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
}

template <auto kConfig, config::Work kWork = kConfig.work>
struct AwaitRows {  // before a tile's rows of A are read: await_rows.h, where they still arrive
  __device__ void await(const Sm90GemmParams&, const Tile&) {}
};

// Tells consumers of each tile, and whether more follow: pass_tiles.h, where they do not walk.
template <Sm90GemmConfig kConfig, bool kPasses = kConfig.passes_tiles()>
struct TileSender {
  __device__ explicit TileSender(const SharedMemory<kConfig>&) {}
  __device__ void send(const Tile&, bool) {}
};

// Calls load(stage, tile, k) for each stage that this block fills, as soon as it is empty.
template <Sm90GemmConfig kConfig, typename Load>
__device__ void for_each_stage(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                               Load&& load) {
  RingPosition<kConfig.stages> position;
  AwaitRows<kConfig> rows;
  TileSender<kConfig> consumers(smem);
  for (auto walk = walk_of<kConfig>(params); walk.has_tile();) {
    const Tile tile = walk.tile();
    rows.await(params, tile);
    walk.advance();
    consumers.send(tile, walk.has_tile());
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      ptx::mbarrier_wait(smem.empty(position.stage), position.parity ^ 1);
      load(position.stage, tile, k);
      position.advance();
    }
  }
}

// The rows of an operand that a tile reads: the first one, and where they end, perhaps beyond the
// tile.
struct RowRange {
  int first;
  int end;
};

// Rows count from the operand's first one. The instruction's columns are rows of their operand.
__device__ inline RowRange rows_of(const Tile& tile) {
  return {tile.operand_row, tile.row_end + (tile.operand_row - tile.row)};
}
__device__ inline RowRange columns_of(const Tile& tile) {
  return {tile.operand_column, tile.column_end + (tile.operand_column - tile.column)};
}

// The same rows, counted as the operand's scales count them: B's begin anew with each group.
template <Sm90GemmConfig kConfig>
__device__ RowRange scaled_rows_of(const Tile& tile) {
  return kConfig.swapped ? RowRange{tile.row, tile.row_end} : rows_of(tile);
}
template <Sm90GemmConfig kConfig>
__device__ RowRange scaled_columns_of(const Tile& tile) {
  return kConfig.swapped ? columns_of(tile) : RowRange{tile.column, tile.column_end};
}

}  // namespace octofold::sm90
