// Rows of A that arrive in shards while the product runs: the order in which it takes them, for the
// walk over tiles, the CPU backend, which makes the same one, and the tests; and the walk itself,
// that of a product without arrivals, turned so that it begins where the first shard does.
#pragma once

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/tile_walk.h"

namespace octofold::config {

// Rows in shards of `shard_rows` each, which come in this order: first_shard, the ones behind it,
// then those before it. Tiles of rows lie anywhere across shards. They come in a circle too: from
// the first one that begins in the first shard, or behind it, on to the last rows, then from row 0.
// So the tiles that the first k shards complete are the first ones of this circle, for each k. A
// tile that lies in two shards comes with the later one.
struct ArrivalOrder {
  int rows;
  int shard_rows;
  int shards;
  int first_shard;
  int tile_rows;

  constexpr int tiles() const { return ceil_divide(rows, tile_rows); }

  // How many tiles have all of their rows once the first `count` shards are there.
  constexpr int tiles_of(int count) const {
    if (count == shards) return tiles();
    const int end = first_shard + count;
    if (end < shards) {
      const int tiles = end * shard_rows / tile_rows - first_tile();
      return tiles > 0 ? tiles : 0;
    }
    // On to the last rows, whose tile may not be full, and from row 0.
    return tiles() - first_tile() + (end - shards) * shard_rows / tile_rows;
  }

  // The row at which tile `number` of the circle begins.
  constexpr int row_of(int number) const { return turned(number * tile_rows); }

  // The row that stands in the circle where `row` stands in a walk from row 0 on.
  constexpr int turned(int row) const {
    const int behind = row + first_tile() * tile_rows, end = tiles() * tile_rows;
    return behind < end ? behind : behind - end;
  }

  // The number in the circle of the tile that begins at this row or above it.
  constexpr int number_of(int row) const {
    const int number = row / tile_rows - first_tile();
    return number < 0 ? number + tiles() : number;
  }

 private:
  constexpr int first_tile() const { return ceil_divide(first_shard * shard_rows, tile_rows); }
};

// The shards that a reader of tiles knows to be there: how many, in their order.
class ArrivedShards {
 public:
  // Before rows of the tile that begins at `row` are read: calls await(place in the order) for each
  // shard that this takes and is not known to be there. Whether there was any.
  template <typename Await>
  constexpr bool require(const ArrivalOrder& order, int row, Await&& await) {
    const int number = order.number_of(row);
    if (number < tiles_) return false;
    do {
      await(shards_);
      tiles_ = order.tiles_of(++shards_);
    } while (number >= tiles_);
    return true;
  }

  constexpr int shards() const { return shards_; }

 private:
  int shards_ = 0;
  int tiles_ = 0;  // of rows, in their order, that these shards complete
};

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
