// The transpose of bytes: a block of 256 threads takes a tile of 128 x 128. Each thread loads 16
// bytes of four rows below each other, makes of them in registers a word of each of the 16 columns,
// and puts these into shared memory, a column of the tile as a line of 128 bytes. From there a
// column leaves as 16 bytes of each of 8 threads. So global memory is read and written in whole
// lines of 128 bytes, four of which are on their way in each thread.
//
// The 16-byte pieces of a line are permuted (piece ^ column / 16), so that a warp finds all 32
// banks both ways: it writes words of eight columns that lie 16 apart, and each eight threads read
// the pieces of one column.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/config/transpose.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold {
namespace transposition {

using config::TransposeConfig;
using config::TransposeParams;

constexpr int kVector = TransposeConfig::kVector;
constexpr int kTile = TransposeConfig::kTile;
constexpr int kLanes = TransposeConfig::kLanes;
constexpr int kRows = TransposeConfig::kRows;

// Makes of four words with four bytes each of a row four words with four bytes each of a column.
__device__ inline void transpose_bytes(const unsigned (&rows)[4], unsigned (&columns)[4]) {
  const unsigned upper_left = __byte_perm(rows[0], rows[1], 0x5140);  // of columns 0 and 1
  const unsigned lower_left = __byte_perm(rows[2], rows[3], 0x5140);
  const unsigned upper_right = __byte_perm(rows[0], rows[1], 0x7362);  // of columns 2 and 3
  const unsigned lower_right = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(upper_left, lower_left, 0x5410);
  columns[1] = __byte_perm(upper_left, lower_left, 0x7632);
  columns[2] = __byte_perm(upper_right, lower_right, 0x5410);
  columns[3] = __byte_perm(upper_right, lower_right, 0x7632);
}

// The address in shared memory of a piece of 16 rows of a tile's column; `strip`: which 16 columns
// it is one of.
__device__ inline unsigned piece_address(unsigned column, unsigned strip, unsigned piece) {
  return ptx::dynamic_shared_memory() + column * kTile + (piece ^ strip) * kVector;
}

// The place of a tile: its matrix, and its first row and column there.
struct Tile {
  __device__ explicit Tile(const TransposeParams& params) {
    const config::TransposeTiles::Place place = params.tiles.at(blockIdx.x);
    matrix = place.matrix;
    row = static_cast<long long>(place.down) * kTile;
    col = static_cast<long long>(place.across) * kTile;
  }

  long long matrix, row, col;
};

template <bool kVectors>
__device__ inline void load_tile(const TransposeParams& params, const Tile& tile) {
  const unsigned lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const long long row = tile.row + group * kRows, col = tile.col + lane * kVector;
  const int rows = cast::at_most(params.rows - row, kRows);
  const int cols = cast::at_most(params.cols - col, kVector);
  const unsigned char* x = params.x + (tile.matrix * params.rows + row) * params.x_stride + col;
  unsigned words[kRows][kVector / 4];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    cast::load<unsigned char, kVectors, kVector>(x + i * params.x_stride, i < rows ? cols : 0,
                                                 words[i]);
  }
  const unsigned first = piece_address(lane * kVector, lane, group / 4) + group % 4 * 4;
#pragma unroll
  for (int part = 0; part < kVector / 4; ++part) {
    const unsigned of_rows[4] = {words[0][part], words[1][part], words[2][part], words[3][part]};
    unsigned of_columns[4];
    transpose_bytes(of_rows, of_columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::store_shared_word(first + (part * 4 + i) * kTile, of_columns[i]);
    }
  }
}

template <bool kVectors>
__device__ inline void store_tile(const TransposeParams& params, const Tile& tile) {
  constexpr int kColumns = TransposeConfig{}.threads() / kLanes;  // at a time
  const unsigned piece = threadIdx.x % kLanes, first = threadIdx.x / kLanes;
  const int rows = cast::at_most(params.rows - tile.row - piece * kVector, kVector);
  const int cols = cast::at_most(params.cols - tile.col, kTile);
  unsigned char* out = params.out + (tile.matrix * params.cols + tile.col) * params.out_stride +
                       tile.row + piece * kVector;
#pragma unroll
  for (int i = 0; i < kTile / kColumns; ++i) {
    const unsigned column = first + i * kColumns;
    unsigned words[kVector / 4];
    ptx::load_shared_words(piece_address(column, column / kVector, piece), words);
    const int exist = static_cast<int>(column) < cols ? rows : 0;
    cast::store<unsigned char, kVectors, kVector>(out + column * params.out_stride, exist, words);
  }
}

}  // namespace transposition

template <config::TransposeConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), ptx::resident_blocks(kConfig.kBlocks))
    transpose_kernel(const __grid_constant__ config::TransposeParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const transposition::Tile tile(params);
  transposition::load_tile<kConfig.vector_loads>(params, tile);
  __syncthreads();
  transposition::store_tile<kConfig.vector_stores>(params, tile);
}

}  // namespace octofold
