// A tile of what is cast, 128 columns wide, in the registers of a block of threads: of each
// thread's rows one vector each.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/sources/all.h"
#include "kernels/config/arithmetic.h"
#include "kernels/config/cast_config.h"
#include "kernels/config/cast_params.h"
#include "kernels/config/tile_schedule.h"

namespace octofold::cast {

using config::CastParams;
using config::TileCastConfig;

template <TileCastConfig kConfig>
struct Tile {
  static constexpr int kVector = kConfig.format.vector();
  static constexpr int kLanes = kConfig.lanes();
  static constexpr int kRows = kConfig.rows_per_thread;

  explicit __device__ Tile(const CastParams& params) {
    const config::TileSchedule schedule{
        .tiles_m = static_cast<int>(config::ceil_divide(params.rows, kConfig.tile_rows)),
        .tiles_n = static_cast<int>(config::ceil_divide(params.cols, kScaleBlock)),
        .raster_rows = kConfig.raster_rows};
    place = schedule.at(static_cast<int>(blockIdx.x));
    lane = static_cast<int>(threadIdx.x % kLanes);
    group = static_cast<int>(threadIdx.x / kLanes);
    cols = at_most(params.cols - first_col() - lane * kVector, kVector);
    rows = cols > 0 ? at_most(params.rows - first_row() - group * kRows, kRows) : 0;
  }

  __device__ long long first_row() const {
    return static_cast<long long>(place.m) * kConfig.tile_rows;
  }
  __device__ long long first_col() const { return static_cast<long long>(place.n) * kScaleBlock; }

  // How many elements of row `row` of this thread exist.
  template <bool kVectors>
  __device__ int exist(int row) const {
    return row < rows ? (kVectors ? kVector : cols) : 0;
  }

  __device__ void load(const CastParams& params) {
    using Values = Source<kConfig.source, kConfig.format.in, kConfig.vector_loads>;
    const Values source(params, first_row() + group * kRows, first_col() + lane * kVector);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      source.load(i, 0, exist<kConfig.vector_loads>(i), words[i]);
    }
  }

  config::TileCoordinate place;
  int lane, group;  // column and row of this thread among the threads of the tile
  int rows, cols;   // how much of what this thread holds exists: 0 or less, nothing
  unsigned words[kRows][4];
};

}  // namespace octofold::cast
