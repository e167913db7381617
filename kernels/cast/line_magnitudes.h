// The largest magnitudes in the rows and in the columns of a tile.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/config/cast.h"
#include "kernels/cast/reductions.h"
#include "kernels/cast/tile.h"
#include "kernels/numeric/vector.h"

namespace octofold::cast {

template <TileCastConfig kConfig, bool kOfRows, bool kOfColumns>
class LineMagnitudes {
 public:
  struct Scratch {
    // The largest magnitudes of each column over the rows of a thread, and those of whole rows.
    alignas(16) unsigned columns[kConfig.to_transposed ? kConfig.groups() : 1][kConfig.lanes()][4];
    unsigned rows[kConfig.tile_rows];
  };

  __device__ LineMagnitudes(const Tile<kConfig>& tile, Scratch& scratch)
      : tile_(tile), scratch_(scratch) {}

  // Leaves them in shared memory: all threads together.
  __device__ void share() {
    if constexpr (kOfColumns) share_columns();
    if constexpr (kOfRows) share_rows();
    __syncthreads();
  }

  __device__ float of_column(int column) const {
    unsigned magnitudes = 0;
#pragma unroll
    for (const auto& group : scratch_.columns) {
      magnitudes =
          numeric::larger<kIn>(magnitudes, reinterpret_cast<const Storage<kIn>*>(group)[column]);
    }
    return numeric::largest<kIn>(magnitudes);
  }
  __device__ float of_row(int row) const { return numeric::largest<kIn>(scratch_.rows[row]); }

 private:
  static constexpr int kLanes = Tile<kConfig>::kLanes;
  static constexpr int kRows = Tile<kConfig>::kRows;
  static constexpr DType kIn = kConfig.format.in;

  __device__ void share_columns() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned magnitudes = numeric::magnitude<kIn>(tile_.words[0][i]);
#pragma unroll
      for (int row = 1; row < kRows; ++row) {
        magnitudes = numeric::larger<kIn>(magnitudes, numeric::magnitude<kIn>(tile_.words[row][i]));
      }
      scratch_.columns[tile_.group][tile_.lane][i] = magnitudes;
    }
  }

  __device__ void share_rows() {
    unsigned magnitudes[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) magnitudes[i] = largest_of_vector<kIn>(tile_.words[i]);
    const unsigned of_row = largest_of_one<kIn, kLanes>(magnitudes, tile_.lane);
    constexpr int kLanesPerRow = kLanes / kRows;
    if (tile_.lane % kLanesPerRow == 0) {
      scratch_.rows[tile_.group * kRows + tile_.lane / kLanesPerRow] = of_row;
    }
  }

  const Tile<kConfig>& tile_;
  Scratch& scratch_;
};

// The place in shared memory of what belongs to a thread's line, columns first, then rows.
// Neighbouring lanes ask for columns a vector apart: those lie next to each other, so that lanes do
// not meet in a bank.
template <TileCastConfig kConfig>
__device__ int place_of_line(int number) {
  constexpr int kVector = Tile<kConfig>::kVector, kLanes = Tile<kConfig>::kLanes;
  return number < kConfig.column_units() ? number % kVector * kLanes + number / kVector : number;
}

}  // namespace octofold::cast
