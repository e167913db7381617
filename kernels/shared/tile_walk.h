// A walk says which block of threads computes which tile of D, over which part of K, and when. The
// one piece of scheduling, for the planner, the kernel, and the tests, which run it.
//
// A walk is the tiles of one block of threads, one after another. Every role of the block makes the
// same walk, or is told (sm90/pass_tiles.h). What a role does not ask of a tile is not worked out.
//
//   TileWalk(const WorkParams&, int block, int blocks);  // one of so many, whole clusters
//   bool has_tile() const;
//   void advance();
//   Tile tile() const;
//   bool has_stages() const;     // whether this tile, or a later one, has anything to sum
// Here are the walk over a dense product and split-K; others are in group_walk.h, arrival_walk.h.
#pragma once

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/tile_schedule.h"
#include "kernels/shared/work.h"

namespace octofold::config {

// The tiles of clusters of a D of so many of the instruction's rows and columns.
template <auto kConfig>
constexpr TileSchedule cluster_schedule(int rows, int columns, TileBands bands = {}) {
  return tile_schedule(rows, columns, kConfig.cluster_tile_rows(), kConfig.cluster_tile_columns(),
                       bands);
}

// The first element of a block's tile, by its cluster's place. The tiles of a cluster lie side by
// side along one dimension, or are one.
template <auto kConfig>
constexpr TileCoordinate first_element_at(TileCoordinate place, int rank) {
  place.m = place.m * kConfig.cluster_rows + (kConfig.cluster_rows > 1 ? rank : 0);
  place.n = place.n * kConfig.cluster_columns + (kConfig.cluster_columns > 1 ? rank : 0);
  return {place.m * kConfig.tile_rows, place.n * kConfig.tile_columns};
}
template <auto kConfig>
constexpr TileCoordinate first_element(const TileSchedule& schedule, int index, int rank) {
  return first_element_at<kConfig>(schedule.at(index), rank);
}

template <auto kConfig, Work kWork = kConfig.work>
class TileWalk;

template <auto kConfig>
class TileWalk<kConfig, Work::kDense> {
 public:
  constexpr TileWalk(const WorkParams& work, int block, int blocks)
      : TileWalk(work, block, blocks,
                 cluster_schedule<kConfig>(work.rows, work.columns, work.bands)) {}
  constexpr TileWalk(const WorkParams& work, int block, int blocks, const TileSchedule& schedule)
      : work_(work),
        schedule_(schedule),
        index_(block / kConfig.cluster_size()),
        step_(blocks / kConfig.cluster_size()),
        count_(schedule_.count()),
        rank_(block % kConfig.cluster_size()) {}

  constexpr bool has_tile() const { return index_ < count_; }
  constexpr void advance() { index_ += step_; }

  constexpr Tile tile() const {
    const auto [row, column] = first_element<kConfig>(schedule_, index_, rank_);
    int k_begin = 0, k_end = work_.depth;
    if constexpr (kConfig.split_k > 1) {  // whole blocks of K
      const int blocks = ceil_divide(work_.depth, kScaleBlock);
      k_begin = rank_ * blocks / kConfig.split_k * kScaleBlock;
      const int next = (rank_ + 1) * blocks / kConfig.split_k * kScaleBlock;
      if (next < k_end) k_end = next;
    }
    return {.group = 0,
            .operand_row = row,
            .operand_column = column,
            .row = row,
            .column = column,
            .row_end = work_.rows,
            .column_end = work_.columns,
            .k_begin = k_begin,
            .k_end = k_end};
  }

  constexpr bool has_stages() const { return index_ < count_ && work_.depth > 0; }

 private:
  const WorkParams& work_;
  TileSchedule schedule_;
  int index_;  // of the cluster's tile
  int step_;
  int count_;
  int rank_;
};

}  // namespace octofold::config
