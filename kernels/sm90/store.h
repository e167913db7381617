// The tile of D on its way out: from the math warpgroups' registers through shared memory and TMA,
// or straight to global memory.
#pragma once

#include "kernels/epilogue/finish.h"
#include "kernels/epilogue/store_pairs.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90/config/gemm.h"
#include "kernels/sm90/math.h"
#include "kernels/sm90/shared_memory.h"
#include "kernels/sm90/walk.h"

namespace octofold::sm90 {

using config::Sm90GemmConfig;
using config::Sm90GemmParams;
using config::Tile;

// Row of the tile that a math thread's first sum of sub-tile 0 belongs to; the second lies 8 below.
template <Sm90GemmConfig kConfig>
__device__ int first_row_of_thread() {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  return warp / 4 * kConfig.warpgroup_rows() + warp % 4 * 16 + lane / 4;
}

// Whether this block stores the eight columns of the tile that begin with this one.
template <Sm90GemmConfig kConfig>
__device__ bool owns(int column, int rank) {
  return column / kConfig.owned_columns() == rank;
}

// Any row stride, any alignment, any type: each thread stores pairs of columns.
template <Sm90GemmConfig kConfig>
__device__ void store_directly(const Sm90GemmParams& params, const Tile& tile, int rank,
                               const Sums<kConfig>& sums) {
  store_pairs<kConfig, kConfig.tile_columns>(
      params, tile, tile.row + first_row_of_thread<kConfig>(), 0,
      [&](int first) { return owns<kConfig>(first, rank); },
      [&](int sub_tile, int place) { return sums[sub_tile][place]; });
}

// Boxes that TMA stores: rows of 128, 64 or 32 bytes under the swizzle of that width, so that
// neither threads nor the copy engine meet a bank conflict. Of sixteen columns of a warp's 16 rows,
// where the lane's part lies. `rows`: where the first of these rows lies in the box; `first`: the
// columns' place in it.

// FP32: its upper pair of the left eight, or (`right` 1) the right eight columns; the lower one
// lies eight rows below.
template <int kRowBytes>
__device__ unsigned pair_in_box(unsigned rows, int first, int right) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, swizzle = row * kRowBytes / 128 % (kRowBytes / 16);
  const int chunk = first / 4 + lane % 4 / 2 + 2 * right;
  return rows + row * kRowBytes + 16 * (chunk ^ swizzle) + 8 * (lane % 2);
}

// 16 bits: what it addresses of four matrices, row l % 16 of the left or (l ≥ 16) the right eight
// columns.
template <int kRowBytes>
__device__ unsigned matrix_row_in_box(unsigned rows, int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane % 16, swizzle = row * kRowBytes / 128 % (kRowBytes / 16);
  const int chunk = first / 8 + lane / 16;
  return rows + row * kRowBytes + 16 * (chunk ^ swizzle);
}

template <DType kOut, int kRowBytes>
__device__ void write_to_box(unsigned rows, int first, float2 upper_left, float2 lower_left,
                             float2 upper_right, float2 lower_right) {
  if constexpr (kOut == DType::kFloat32) {
    const unsigned left = pair_in_box<kRowBytes>(rows, first, 0);
    const unsigned right = pair_in_box<kRowBytes>(rows, first, 1);
    ptx::store_shared(left, upper_left);
    ptx::store_shared(left + 8 * kRowBytes, lower_left);
    ptx::store_shared(right, upper_right);
    ptx::store_shared(right + 8 * kRowBytes, lower_right);
  } else {
    ptx::store_matrices(
        matrix_row_in_box<kRowBytes>(rows, first), pack_pair<kOut>(upper_left.x, upper_left.y),
        pack_pair<kOut>(lower_left.x, lower_left.y), pack_pair<kOut>(upper_right.x, upper_right.y),
        pack_pair<kOut>(lower_right.x, lower_right.y));
  }
}

// Writes the tile to shared memory as the boxes that TMA stores.
template <Sm90GemmConfig kConfig>
__device__ void stage_rows(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                           const Tile& tile, int rank, const Sums<kConfig>& sums) {
  constexpr int kBoxColumns = SharedMemory<kConfig>::kLayout.output_box_columns;
  constexpr int kRowBytes = kBoxColumns * size_of(kConfig.form.out);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row_of_thread = first_row_of_thread<kConfig>();
  const int first_row = tile.row + row_of_thread;
  const ColumnFactors<kConfig> column_factors(params, tile);
  const RowFactors<kConfig> row_factors(params, tile, first_row);
  const unsigned rows_of_warp = smem.output() + (row_of_thread - lane / 4) * kRowBytes;
#pragma unroll
  for (int j = 0; j < kConfig.tile_columns / 8; j += 2) {
    if (!owns<kConfig>(8 * j, rank)) continue;
    // No load moves across this: the assembler would read the terms of all columns ahead, for which
    // there are no registers.
    if constexpr (!kSumsAreFinal<kConfig>) __syncwarp();
    const ColumnTerms<kConfig> left(params, tile, column_factors, 8 * j);
    const ColumnTerms<kConfig> right(params, tile, column_factors, 8 * (j + 1));
    const int owned = 8 * j % kConfig.owned_columns();
    const unsigned box = rows_of_warp + owned / kBoxColumns * kConfig.tile_rows * kRowBytes;
#pragma unroll
    for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
      const int row = first_row + 64 * sub_tile;
      const RowTerms<kConfig> upper(params, tile, row, row_factors.at(sub_tile, 0));
      const RowTerms<kConfig> lower(params, tile, row + 8, row_factors.at(sub_tile, 1));
      const float* pairs = &sums[sub_tile][4 * j];
      write_to_box<kConfig.form.out, kRowBytes>(
          box + 64 * sub_tile * kRowBytes, owned % kBoxColumns,
          upper.finish(left, pairs[0], pairs[1]), lower.finish(left, pairs[2], pairs[3]),
          upper.finish(right, pairs[4], pairs[5]), lower.finish(right, pairs[6], pairs[7]));
    }
  }
}

// The same where operands are swapped: a row of D is a column here, and 64 of its columns, 128
// bytes, are the rows of a sub-tile.
template <Sm90GemmConfig kConfig>
__device__ void stage_columns(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                              const Tile& tile, int rank, const Sums<kConfig>& sums) {
  constexpr int kOwned = kConfig.owned_columns();
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
    if constexpr (!kSumsAreFinal<kConfig>) __syncwarp();
    const ColumnTerms<kConfig> columns(params, tile, column_factors, 8 * j);
#pragma unroll
    for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
      const int row = first_row + 64 * sub_tile;
      const RowTerms<kConfig> upper(params, tile, tile.row + row, row_factors.at(sub_tile, 0));
      const RowTerms<kConfig> lower(params, tile, tile.row + row + 8, row_factors.at(sub_tile, 1));
      const float* pairs = &sums[sub_tile][4 * j];
      const float2 above = upper.finish(columns, pairs[0], pairs[1]);
      const float2 below = lower.finish(columns, pairs[2], pairs[3]);
      ptx::store_matrices_transposed(target + (row / 64 * kOwned + 8 * j % kOwned) * 128,
                                     pack_pair<kConfig.form.out>(above.x, above.y),
                                     pack_pair<kConfig.form.out>(below.x, below.y));
    }
  }
}

// To D, or added to it: one thread. `row_end`: where D's rows end, or those of the group.
//
// TMA leaves out what lies outside of a tensor, but knows of no group. So the map's rows have two
// dimensions, both of D's row stride: kBoxRows rows, behind which nothing is stored, and where they
// begin. A box of which `existing` rows are the group's begins at row kBoxRows - existing of the
// first, so that just these lie inside; the second puts it where it belongs, counted from kBoxRows
// rows before D, which is what the map takes for D's first.
template <Sm90GemmConfig kConfig>
__device__ void send_box(const Sm90GemmParams& params, unsigned box, int column, int row,
                         int row_end) {
  if constexpr (kConfig.stores_groups()) {
    constexpr int kBoxRows = SharedMemory<kConfig>::kLayout.output_box_rows;
    const int existing = min(row_end - row, kBoxRows);
    if (existing <= 0) return;
    if constexpr (kConfig.adds_in_place) {
      ptx::tma_add(&params.out_map, box, column, kBoxRows - existing, row + existing);
    } else {
      ptx::tma_store(&params.out_map, box, column, kBoxRows - existing, row + existing);
    }
  } else if constexpr (kConfig.adds_in_place) {
    ptx::tma_add(&params.out_map, box, column, row);
  } else {
    ptx::tma_store(&params.out_map, box, column, row);
  }
}

// Each math warp sends its own rows out in pieces, some under way while it fills the next one.
template <Sm90GemmConfig kConfig>
class PieceStore {
 public:
  __device__ explicit PieceStore(const SharedMemory<kConfig>& smem)
      : pieces_(smem.output() + static_cast<int>(threadIdx.x) / 32 * kConfig.pieces * kPieceBytes) {
  }

  __device__ void store(const Sm90GemmParams& params, const Tile& tile, int rank,
                        const Sums<kConfig>& sums) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first_row = tile.row + first_row_of_thread<kConfig>();
    const RowFactors<kConfig> row_factors(params, tile, first_row);
#pragma unroll
    for (int begin = 0; begin < kConfig.tile_columns; begin += kColumns) {
      if (!owns<kConfig>(begin, rank)) continue;
#pragma unroll
      for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
        const int row = first_row + 64 * sub_tile;
        if (row - lane / 4 >= tile.row_end) break;
        if (lane == 0) ptx::tma_store_wait_read<kConfig.pieces - 1>();
        __syncwarp();
        const unsigned piece = pieces_ + next_ * kPieceBytes;
        const RowTerms<kConfig> upper(params, tile, row, row_factors.at(sub_tile, 0));
        const RowTerms<kConfig> lower(params, tile, row + 8, row_factors.at(sub_tile, 1));
#pragma unroll
        for (int column = 0; column < kColumns; column += 16) {
          // Those of a whole tile take registers that pieces lack.
          const ColumnFactors<kConfig, 16> column_factors(params, tile, begin + column);
          const ColumnTerms<kConfig> left(params, tile, column_factors, 0, begin + column);
          const ColumnTerms<kConfig> right(params, tile, column_factors, 8, begin + column);
          const float* pairs = &sums[sub_tile][(begin + column) / 2];
          write_to_box<kConfig.form.out, config::kPieceRowBytes>(
              piece, column, upper.finish(left, pairs[0], pairs[1]),
              lower.finish(left, pairs[2], pairs[3]), upper.finish(right, pairs[4], pairs[5]),
              lower.finish(right, pairs[6], pairs[7]));
        }
        ptx::fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
          send_box<kConfig>(params, piece, tile.column + begin, row, tile.row_end);
          ptx::tma_store_commit();
        }
        next_ = next_ + 1 == kConfig.pieces ? 0 : next_ + 1;
      }
    }
  }

  // Shared memory has to last until all of it is read.
  __device__ void finish() const { ptx::tma_store_wait_read<0>(); }

 private:
  static constexpr int kPieceBytes = config::kPieceBytes;
  static constexpr int kColumns = kConfig.piece_columns();

  unsigned pieces_;  // of the warp
  int next_ = 0;
};

// One thread of the loading warpgroup: the math warpgroups go on with the next tile meanwhile.
template <Sm90GemmConfig kConfig>
__device__ void store_staged_tiles(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                                   int rank) {
  constexpr int kOwned = kConfig.owned_columns();
  constexpr int kBoxRows = SharedMemory<kConfig>::kLayout.output_box_rows;
  constexpr int kBoxColumns = SharedMemory<kConfig>::kLayout.output_box_columns;
  constexpr int kBoxBytes = kBoxRows * kBoxColumns * size_of(kConfig.form.out);
  // Of the tile, as D has it.
  constexpr int kRows = kConfig.swapped ? kOwned : kConfig.tile_rows;
  constexpr int kColumns = kConfig.swapped ? kConfig.tile_rows : kOwned;
  unsigned parity = 0;
  for (auto walk = walk_of<kConfig>(params); walk.has_tile(); walk.advance(), parity ^= 1) {
    const Tile tile = walk.tile();
    ptx::mbarrier_wait(smem.output_full(), parity);
    const int first_column = tile.column + rank * kOwned;
    const int row = kConfig.swapped ? first_column : tile.row;
    const int column = kConfig.swapped ? tile.row : first_column;
    const int row_end = kConfig.swapped ? tile.column_end : tile.row_end;
    unsigned source = smem.output();
    for (int j = 0; j < kColumns; j += kBoxColumns) {
      for (int i = 0; i < kRows; i += kBoxRows, source += kBoxBytes) {
        // The last of the blocks that share a tile may own less, or nothing.
        if (kOwned * kConfig.cluster_depth != kConfig.tile_columns &&
            rank * kOwned + i >= kConfig.tile_columns) {
          continue;
        }
        send_box<kConfig>(params, source, column + j, row + i, row_end);
      }
    }
    ptx::tma_store_commit();
    ptx::tma_store_wait_read<0>();
    ptx::mbarrier_arrive(smem.output_empty());
  }
}

}  // namespace octofold::sm90
