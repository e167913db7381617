// Store: boxes of other tiles of D than store_tile.h has. FP32, which threads write, and read, in
// pairs; and tiles with swapped operands.
#pragma once

#include "kernels/sm90/store_tile.h"

namespace octofold::sm90 {

template <int kRowBytes>
struct BoxOf<DType::kFloat32, kRowBytes> {
  struct Pairs {
    float2 upper_left, lower_left, upper_right, lower_right;
  };

  static __device__ void write(unsigned rows, int first, float2 upper_left, float2 lower_left,
                               float2 upper_right, float2 lower_right) {
    const unsigned left = place(rows, first, 0), right = place(rows, first, 1);
    ptx::store_shared(left, upper_left);
    ptx::store_shared(left + 8 * kRowBytes, lower_left);
    ptx::store_shared(right, upper_right);
    ptx::store_shared(right + 8 * kRowBytes, lower_right);
  }

  static __device__ Pairs read(unsigned rows, int first) {
    const unsigned left = place(rows, first, 0), right = place(rows, first, 1);
    return {ptx::load_shared_pair(left), ptx::load_shared_pair(left + 8 * kRowBytes),
            ptx::load_shared_pair(right), ptx::load_shared_pair(right + 8 * kRowBytes)};
  }

  // The lane's pair of the upper eight rows, in the left eight columns or (`right` 1) in the right
  // eight. That of the lower eight rows lies eight rows below.
  static __device__ unsigned place(unsigned rows, int first, int right) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / 4, swizzle = row * kRowBytes / 128 % (kRowBytes / 16);
    const int chunk = first / 4 + lane % 4 / 2 + 2 * right;
    return rows + row * kRowBytes + 16 * (chunk ^ swizzle) + 8 * (lane % 2);
  }
};

// Swapped operands: a row of D is a column of the instruction, and 64 of D's columns, 128 bytes,
// are the rows of a sub-tile: `stmatrix.trans` turns them on their way to shared memory. 16-bit
// elements alone.
template <Sm90GemmConfig kConfig>
struct WriteSwapped {
  static constexpr int kRows = kConfig.owned_columns(), kColumns = kConfig.tile_rows;

  static __device__ Origin origin(const Tile& tile, int rank) {
    return {tile.column + rank * kRows, tile.row, tile.column_end};
  }

  static __device__ void write(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                               const Tile& tile, int rank, const Accumulators<kConfig>& sums) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first_row = first_row_of_thread<kConfig>();
    // stmatrix: lane l addresses column l % 8, of the upper or (l ≥ 8) the lower 8 of 16 rows.
    const int first_chunk = (first_row - lane / 4) % 64 / 8 + lane / 8 % 2;
    const int row_of_lane = lane % 8;
    const unsigned target = smem.output() + row_of_lane * 128 + 16 * (first_chunk ^ row_of_lane);
    const ColumnFactors<kConfig> column_factors(params, tile);
    const RowFactors<kConfig> row_factors(params, tile, tile.row + first_row);
#pragma unroll
    for (int j = 0; j < kConfig.tile_columns / 8; ++j) {
      if (!owns<kConfig>(8 * j, rank)) continue;
      hold_back_loads<kConfig>();
      const ColumnTerms<kConfig> columns(params, tile, column_factors, 8 * j);
#pragma unroll
      for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
        const int row = first_row + kConfig.sub_tile_stride() * sub_tile;
        const RowTerms<kConfig> upper(params, tile, tile.row + row, row_factors.at(sub_tile, 0));
        const RowTerms<kConfig> lower(params, tile, tile.row + row + 8,
                                      row_factors.at(sub_tile, 1));
        const float* pairs = &sums[sub_tile][4 * j];
        const float2 above = upper.finish(columns, pairs[0], pairs[1]);
        const float2 below = lower.finish(columns, pairs[2], pairs[3]);
        ptx::store_matrices_transposed(target + (row / 64 * kRows + 8 * j % kRows) * 128,
                                       pack_pair<kConfig.form.out>(above.x, above.y),
                                       pack_pair<kConfig.form.out>(below.x, below.y));
      }
    }
  }
};

}  // namespace octofold::sm90
