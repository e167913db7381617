// The walk of TileWalk over a dense product whose rows of A arrive while it runs: that of a product
// without arrivals, turned so that it begins where the first shard does.
#pragma once

#include "kernels/shared/arrival_order.h"
#include "kernels/shared/tile_walk.h"

namespace octofold::config {

template <auto kConfig>
constexpr ArrivalOrder arrival_order(const WorkParams& work) {
  return {work.rows, work.shard_rows, work.groups, work.first_shard, kConfig.cluster_tile_rows()};
}

// Bands of rows end where shards do, as far as they are whole tiles: a band's first tiles have to
// wait for the shards of all of its rows.
template <auto kConfig>
constexpr TileSchedule arrival_schedule(const WorkParams& work) {
  TileSchedule schedule = cluster_schedule<kConfig>(work.rows, work.columns, work.bands);
  const int tiles = work.shard_rows / kConfig.cluster_tile_rows();
  const int bands = ceil_divide(tiles, schedule.bands.width);
  schedule.bands.width = bands > 0 ? ceil_divide(tiles, bands) : 1;
  return schedule;
}

template <auto kConfig>
class TileWalk<kConfig, Work::kArrivingRows> : public TileWalk<kConfig, Work::kDense> {
  using Dense = TileWalk<kConfig, Work::kDense>;

 public:
  constexpr TileWalk(const WorkParams& work, int block, int blocks)
      : Dense(work, block, blocks, arrival_schedule<kConfig>(work)),
        order_(arrival_order<kConfig>(work)) {}

  constexpr Tile tile() const {
    Tile tile = Dense::tile();
    tile.row = tile.operand_row = order_.turned(tile.row);
    return tile;
  }

 private:
  ArrivalOrder order_;
};

}  // namespace octofold::config
