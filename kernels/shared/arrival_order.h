// The order in which a product takes rows that arrive in shards. For the walk over tiles, the CPU
// backend, which makes the same one, and the tests.
#pragma once

#include "kernels/shared/arithmetic.h"

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
  constexpr int row_of(int number) const {
    const int tile = first_tile() + number;
    return (tile < tiles() ? tile : tile - tiles()) * tile_rows;
  }

 private:
  constexpr int first_tile() const { return ceil_divide(first_shard * shard_rows, tile_rows); }
};

}  // namespace octofold::config
