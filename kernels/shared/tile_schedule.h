// The order of output tiles. The one piece of scheduling, for the planner, the kernel and the test
// that proves that each tile comes exactly once.
#pragma once

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

struct TileCoordinate {
  int m;
  int n;
};

// How a grid of tiles is walked, for the sake of the L2 cache: in bands of so many rows of tiles,
// down the rows first, or of so many columns, along the columns first. In a GEMM, what runs at one
// time is about square then, and so reads little of A and B.
struct TileBands {
  bool of_columns = false;
  int width = 8;
};

struct TileSchedule {
  int tiles_m;
  int tiles_n;
  TileBands bands;

  constexpr int count() const { return tiles_m * tiles_n; }

  constexpr TileCoordinate at(int index) const {
    const int across = bands.of_columns ? tiles_n : tiles_m;
    const int along = bands.of_columns ? tiles_m : tiles_n;
    const int band_size = bands.width * along;
    const int band = index / band_size;
    const int first = band * bands.width;
    // The last band may have fewer lines; one of a single line is whole, and nothing is divided.
    const int rest = across - first;
    const int width = bands.width > 1 && rest < bands.width ? rest : bands.width;
    const int within = index - band * band_size;
    const int step = within / width;  // the one division: what it leaves is cheaper multiplied
    const int line = first + within - step * width;
    return bands.of_columns ? TileCoordinate{step, line} : TileCoordinate{line, step};
  }
};

// The schedule of D [m, n] in such tiles. (It takes numbers, not a configuration: a kernel that
// passes its template argument on by reference reads it from memory, and nothing of it folds.)
constexpr TileSchedule tile_schedule(int m, int n, int tile_m, int tile_n, TileBands bands = {}) {
  return {ceil_divide(m, tile_m), ceil_divide(n, tile_n), bands};
}

}  // namespace octofold::config
