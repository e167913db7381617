// Which output tile comes when. The one piece of scheduling, for the planner, the kernel and the
// test that proves that each tile comes exactly once.
#pragma once

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

struct TileCoordinate {
  int m;
  int n;
};

// A grid of tiles, walked `group_m` rows at a time, down the rows first. In a GEMM, what runs
// at one time is about square then, and so reads little of A and B.
struct TileSchedule {
  int tiles_m;
  int tiles_n;
  int group_m;

  constexpr int count() const { return tiles_m * tiles_n; }

  constexpr TileCoordinate at(int index) const {
    if (group_m == 1) return {index / tiles_n, index % tiles_n};
    const int band_size = group_m * tiles_n;
    const int band = index / band_size;
    const int first = band * group_m;
    const int rows = tiles_m - first < group_m ? tiles_m - first : group_m;
    const int within = index - band * band_size;
    const int column = within / rows;  // the one division: what it leaves is cheaper multiplied
    return {first + within - column * rows, column};
  }
};

// Of D [m, n] in tiles of these sizes. (It takes numbers, not a configuration: a kernel that passes
// its template argument on by reference reads it from memory, and nothing of it folds.)
constexpr TileSchedule tile_schedule(int m, int n, int tile_m, int tile_n, int group_m) {
  return {ceil_divide(m, tile_m), ceil_divide(n, tile_n), group_m};
}

}  // namespace octofold::config
