// Tiles of parts whose sizes are numbers in device memory, such as groups of rows or sequences:
// those of one part after those of another.
#pragma once

#include "kernels/numeric/lanes.h"

namespace octofold::numeric {

struct TileOfPart {
  int part;
  unsigned tile;  // of the part's
  bool exists;
};

// Tile `index` below 2^29 of those of all parts, by all lanes of a warp, each of which asks for
// kOfLane parts at once: tiles_of(part) is how many a part has. Numbers that lie may make more
// tiles than there are: those of a part beyond `index` are not counted, so that sums are right as
// far as they matter.
template <int kOfLane, typename TilesOf>
__device__ inline TileOfPart find_tile(int parts, unsigned index, TilesOf&& tiles_of) {
  const unsigned lane = threadIdx.x % 32;
  unsigned before = 0;
  TileOfPart found{0, 0, false};
  for (int first = 0; first < parts; first += 32 * kOfLane) {
    int part = first + static_cast<int>(lane) * kOfLane;
    unsigned tiles[kOfLane], own = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      tiles[i] = part + i < parts ? min(tiles_of(part + i), index + 1) : 0;
      own += tiles[i];
    }
    unsigned through = own;
#pragma unroll
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const unsigned other = __shfl_up_sync(0xFFFFFFFFu, through, distance);
      if (lane >= distance) through += other;
    }
    const unsigned hit = min_of_lanes(index < before + through ? lane : 32u);
    // The lane that has the tile finds which of its parts it belongs to.
    unsigned tile = index - before - (through - own);
    bool goes_on = true;
#pragma unroll
    for (int i = 0; i + 1 < kOfLane; ++i) {
      goes_on = goes_on && tile >= tiles[i];
      if (goes_on) tile -= tiles[i], ++part;
    }
    part = __shfl_sync(0xFFFFFFFFu, part, static_cast<int>(hit % 32));
    tile = __shfl_sync(0xFFFFFFFFu, tile, static_cast<int>(hit % 32));
    if (hit < 32 && !found.exists) found = {part, tile, true};
    before += __shfl_sync(0xFFFFFFFFu, through, 31);
  }
  return found;
}

}  // namespace octofold::numeric
