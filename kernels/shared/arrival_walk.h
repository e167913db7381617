// The walk of TileWalk over a dense product whose rows of A arrive while it runs: shard by shard,
// in the order in which they come.
#pragma once

#include "kernels/shared/arrival_order.h"
#include "kernels/shared/tile_walk.h"

namespace octofold::config {

template <auto kConfig>
class TileWalk<kConfig, Work::kArrivingRows> {
 public:
  constexpr TileWalk(const WorkParams& work, int block, int blocks)
      : work_(work),
        index_(block / kConfig.cluster_size()),
        step_(blocks / kConfig.cluster_size()),
        rank_(block % kConfig.cluster_size()) {
    find_shard();
  }

  constexpr bool has_tile() const { return index_ < count(); }
  constexpr void advance() {
    index_ += step_;
    find_shard();
  }

  // How many shards, in their order, have to be there before A's rows of this tile are read.
  constexpr int shards() const { return shards_; }

  constexpr Tile tile() const {
    // The tiles of rows, in their order, that the last of these shards completes.
    const int begin = order().tiles_of(shards_ - 1), end = order().tiles_of(shards_);
    const TileSchedule schedule{end - begin, tiles_of_columns(), kConfig.group_m};
    const auto [within, column] =
        first_element<kConfig>(schedule, index_ - begin * tiles_of_columns(), rank_);
    const int number = begin + within / kConfig.cluster_tile_rows();
    const int row = order().row_of(number) + within % kConfig.cluster_tile_rows();
    return {.group = 0,
            .operand_row = row,
            .operand_column = column,
            .row = row,
            .column = column,
            .row_end = work_.rows,
            .column_end = work_.columns,
            .k_begin = 0,
            .k_end = work_.depth};
  }

  constexpr bool has_stages() const { return has_tile() && work_.depth > 0; }
  constexpr bool stages_follow() const { return index_ + step_ < count() && work_.depth > 0; }

 private:
  constexpr ArrivalOrder order() const {
    return {work_.rows, work_.shard_rows, work_.groups, work_.first_shard,
            kConfig.cluster_tile_rows()};
  }
  constexpr int tiles_of_columns() const {
    return ceil_divide(work_.columns, kConfig.cluster_tile_columns());
  }
  constexpr int count() const { return order().tiles() * tiles_of_columns(); }

  // Goes on to the shard that completes the tile's rows.
  constexpr void find_shard() {
    while (has_tile() && index_ >= order().tiles_of(shards_) * tiles_of_columns()) ++shards_;
  }

  const WorkParams& work_;
  int index_;  // of the cluster's tile
  int step_;
  int rank_;
  int shards_ = 1;  // (What follows from it is cheap, and the producers have few registers.)
};

}  // namespace octofold::config
