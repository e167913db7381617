// Units of work: which block of threads computes which tile of D, over which part of K, and in
// which order. The one piece of scheduling, for the planner, the kernel, and the tests, which run
// it.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/config/arithmetic.h"
#include "kernels/config/tile_schedule.h"

namespace octofold::config {

// What all blocks of a dense product share: the sizes of D, and how many values its elements sum.
struct WorkParams {
  int rows;
  int columns;
  int depth;
};

// One unit of work. Whoever loads, multiplies or stores knows of the product what stands here.
struct Tile {
  // Of the operands: the first row of each that the tile reads.
  int operand_row;
  int operand_column;
  // Of D: the tile's first element, and where the rows and columns end, perhaps beyond the tile.
  // What lies behind the ends is neither read nor stored; a cluster's last tile may begin there.
  int row;
  int column;
  int row_end;
  int column_end;
  // Of K. Empty: the sum is 0.
  int k_begin;
  int k_end;
};

// The tiles of one block of threads, one after another. Every role of the block makes the same
// walk. What a role does not ask of a tile is not worked out.
template <auto kConfig>
class TileWalk {
 public:
  // The block's number and their count, whole clusters.
  constexpr TileWalk(const WorkParams& work, int block, int blocks)
      : work_(work),
        schedule_(tile_schedule(work.rows, work.columns, kConfig.cluster_tile_rows(),
                                kConfig.cluster_tile_columns(), kConfig.raster_rows)),
        index_(block / kConfig.cluster_size()),
        step_(blocks / kConfig.cluster_size()),
        count_(schedule_.count()),
        rank_(block % kConfig.cluster_size()) {}

  constexpr bool has_tile() const { return index_ < count_; }
  constexpr void advance() { index_ += step_; }

  constexpr Tile tile() const {
    // Of a cluster's blocks, which lie side by side along one dimension, or share a tile.
    TileCoordinate place = schedule_.at(index_);
    place.m = place.m * kConfig.cluster_rows + (kConfig.cluster_rows > 1 ? rank_ : 0);
    place.n = place.n * kConfig.cluster_columns + (kConfig.cluster_columns > 1 ? rank_ : 0);
    const int row = place.m * kConfig.tile_rows, column = place.n * kConfig.tile_columns;
    int k_begin = 0, k_end = work_.depth;
    if constexpr (kConfig.cluster_depth > 1) {  // whole blocks of K
      const int blocks = ceil_divide(work_.depth, kScaleBlock);
      k_begin = rank_ * blocks / kConfig.cluster_depth * kScaleBlock;
      const int next = (rank_ + 1) * blocks / kConfig.cluster_depth * kScaleBlock;
      if (next < k_end) k_end = next;
    }
    return {.operand_row = row,
            .operand_column = column,
            .row = row,
            .column = column,
            .row_end = work_.rows,
            .column_end = work_.columns,
            .k_begin = k_begin,
            .k_end = k_end};
  }

  // Whether a later tile of this block has anything to sum.
  constexpr bool stages_follow() const { return index_ + step_ < count_ && work_.depth > 0; }

 private:
  const WorkParams& work_;
  TileSchedule schedule_;
  int index_;  // of the cluster's tile
  int step_;
  int count_;
  int rank_;
};

}  // namespace octofold::config
