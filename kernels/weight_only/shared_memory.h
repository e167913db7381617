// The layout of W and x in a stage of shared memory. Rows are of units of 16 bytes, whose order
// within a row differs from row to row, so that the lanes that load at one time find theirs in
// different banks (fragments.h says which these are).
#pragma once

#include "kernels/ptx/shared_memory.h"
#include "kernels/weight_only/config/config.h"

namespace octofold::weight_only {

using config::WeightOnlyConfig;
using config::WeightOnlyParams;

template <WeightOnlyConfig kConfig>
struct Stage {
  // W by columns of out: rows of 128 bytes. Transposed: 128 rows of a byte for each column.
  static constexpr int kDepth = kConfig.group_depth();
  static constexpr int kWRowBytes = kConfig.transposed ? kConfig.tile_columns : kDepth;
  static constexpr int kWRows = kConfig.transposed ? kDepth : kConfig.tile_columns;
  static constexpr int kWUnits = kWRowBytes / 16;
  static constexpr int kWSharing =
      kWUnits < 8 ? 8 / kWUnits : 1;  // rows that lie in the same 128 bytes
  static constexpr int kXUnits = kConfig.x_row_bytes() / 16;

  unsigned address;

  __device__ unsigned w(int group) const { return address + group * kConfig.group_bytes(); }
  __device__ unsigned x(int group) const { return w(group) + kConfig.w_bytes(); }
  __device__ unsigned factors() const {
    return address + kConfig.warps_depth * kConfig.group_bytes();
  }
  // Scales, by group · tile_columns + column, and by group · tile_rows + row.
  __device__ unsigned column_scales() const { return factors() + 4 * kConfig.factors(); }
  __device__ unsigned row_scales() const { return column_scales() + 4 * kConfig.column_scales(); }

  // Transposed, the lanes that load a word together have four rows 16 apart, and of each two
  // neighbouring units: 32 of the 128 bytes that all banks have. Rows of 128 bytes have their units
  // in four orders; of shorter ones, two or four of which share 128 bytes, neighbours change places
  // too. Copies write whole neighbours, which find all banks either way.
  static __device__ unsigned w_offset(int row, int unit) {
    if constexpr (kConfig.ahead) {
      const int other = kConfig.transposed ? row >> 3 & 3 : row >> 1 & 1;
      return row * kWRowBytes + (unit ^ other * 2) * 16;
    }
    if constexpr (kConfig.transposed) {
      const int of_four = row >> 4 & 3;
      const int place = row ^ (of_four & (kWSharing - 1));
      return place * kWRowBytes + (unit ^ of_four / kWSharing * 2) * 16;
    }
    return row * kWRowBytes + (unit ^ (row & 1) * 4) * 16;
  }
  static __device__ unsigned x_offset(int row, int unit) {
    const int other = kConfig.ahead             ? (row & 1) * 4
                      : size_of(kConfig.x) == 4 ? unit >> 3
                      : size_of(kConfig.x) == 2 ? row & 1
                                                : (row & 1) * 4;
    return row * kConfig.x_row_bytes() + (unit ^ other) * 16;
  }
};

}  // namespace octofold::weight_only
