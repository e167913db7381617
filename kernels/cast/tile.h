// A tile of what is cast, 128 columns wide, in the registers of a block of threads: of each
// thread's rows one vector each. Where a source makes two halves at a time, a block has the tile at
// the same place of either.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/sources/all.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/shared/arithmetic.h"
#include "kernels/shared/group_bounds.h"
#include "kernels/shared/tile_schedule.h"

namespace octofold::cast {

using config::CastParams;
using config::TileCastConfig;

template <TileCastConfig kConfig>
struct Tile {
  static constexpr int kVector = kConfig.format.vector();
  static constexpr int kLanes = kConfig.lanes();
  static constexpr int kRows = kConfig.rows_per_thread;

  // The block's own, unless it is said which one.
  __device__ Tile(const CastParams& params, int part)
      : Tile(params, part, static_cast<int>(blockIdx.x)) {}
  __device__ Tile(const CastParams& params, int part, int number) {
    const long long width = params.cols / kConfig.source.parts();
    const config::TileSchedule schedule{
        .tiles_m = static_cast<int>(tiles_down(params)),
        .tiles_n = static_cast<int>(config::ceil_divide(width, kScaleBlock)),
        .bands = {.width = kConfig.group_m}};
    place = schedule.at(number);
    if constexpr (kConfig.is_clustered()) {
      place = {.m = number % kConfig.cluster_tiles, .n = number / kConfig.cluster_tiles};
    }
    if constexpr (kConfig.grouped) {
      of_slot = config::rows_of_slot(params.group_layout, params.offsets, params.groups,
                                     params.rows, place.m);
    }
    if constexpr (kConfig.stacked) {
      tiles_across = schedule.tiles_n;
      matrix = static_cast<int>(params.by_matrix_tiles.quotient(static_cast<unsigned>(place.m)));
      place_in_matrix = place.m - matrix * params.matrix_tiles;
      first_row_of_stack = matrix * params.matrix_rows + transposed_col();
    }
    begin = part * width;
    lane = static_cast<int>(threadIdx.x % kLanes);
    group = static_cast<int>(threadIdx.x / kLanes);
    cols = at_most(params.cols - first_col() - lane * kVector, kVector);
    rows = cols > 0 ? at_most(rows_left(params) - group * kRows, kRows) : 0;
  }

  // True if there is anything to do: not in a slot of no group, nor for a matrix that is not used.
  __device__ bool any(const CastParams& params) const {
    if constexpr (kConfig.skips_unused) return is_used(params.used, matrix);
    if constexpr (kConfig.grouped) return of_slot.begin < of_slot.end;
    return true;
  }
  __device__ long long first_row() const {
    if constexpr (kConfig.grouped) return of_slot.begin;
    if constexpr (kConfig.stacked) return first_row_of_stack;
    return transposed_col();
  }
  // Rows of the matrix, or of the tile's group, end before it.
  __device__ long long end_row(const CastParams& params) const {
    if constexpr (kConfig.grouped) return of_slot.end;
    if constexpr (kConfig.stacked) return (matrix + 1) * params.matrix_rows;
    return params.rows;
  }
  // From the tile's first row up to there.
  __device__ long long rows_left(const CastParams& params) const {
    if constexpr (kConfig.stacked) return params.matrix_rows - transposed_col();
    return end_row(params) - first_row();
  }
  __device__ long long first_col() const {
    return begin + static_cast<long long>(place.n) * kScaleBlock;
  }
  // The row and the column at which the tile's transpose begins in what is written.
  __device__ long long transposed_row(const CastParams& params) const {
    if constexpr (kConfig.stacked) return matrix * params.cols + first_col();
    return first_col();
  }
  __device__ long long transposed_col() const {
    const int down = kConfig.stacked ? place_in_matrix : place.m;
    return static_cast<long long>(down) * kConfig.tile_rows;
  }

  // The address of the scale of all of the tile, or of its transpose: of a tensor, or of a square.
  __device__ float* scale(const CastParams& params) const {
    const config::CastTarget& target = params.row_target;
    if constexpr (kConfig.format.granularity == Granularity::kTensor) return of_tensor(target);
    const long long row = kConfig.stacked ? place.m : first_row() / kScaleBlock;
    return of_square(target, row, first_col());
  }
  __device__ float* transposed_scale(const CastParams& params) const {
    const config::CastTarget& target = params.transposed_target;
    if constexpr (kConfig.format.granularity == Granularity::kTensor) return of_tensor(target);
    long long row = first_col() / kScaleBlock;
    if constexpr (kConfig.stacked) row += static_cast<long long>(matrix) * tiles_across;
    return of_square(target, row, transposed_col());
  }

  // How many elements of row `row` of this thread exist.
  template <bool kVectors>
  __device__ int exist(int row) const {
    return row < rows ? (kVectors ? kVector : cols) : 0;
  }
  // How many of them are written in the cast of rows.
  template <bool kVectors>
  __device__ int written(const CastParams& params, int row) const {
    const int count = exist<kVectors>(row);
    if constexpr (kConfig.source.kind == config::SourceKind::kGathered) {
      const long long at = first_row() + group * kRows + row;
      return count > 0 && is_written<kConfig.source>(params, at) ? count : 0;
    }
    return count;
  }

  __device__ void clear() {
#pragma unroll
    for (auto& row : words) {
#pragma unroll
      for (unsigned& word : row) word = 0;
    }
  }

  config::TileCoordinate place;
  config::GroupBounds of_slot;  // where grouped: the group's rows from the tile's first on
  int matrix, place_in_matrix;  // where stacked: which one the tile is of, and which of its tiles
  int tiles_across;
  long long first_row_of_stack;
  int lane, group;  // column and row of this thread among the threads of the tile
  int rows, cols;   // how much of what this thread holds exists: 0 or less, nothing
  long long begin;  // first column of the half
  unsigned words[kRows][4];

 private:
  static __device__ long long tiles_down(const CastParams& params) {
    if constexpr (kConfig.grouped) {
      return config::blocks_before_group<long long>(params.group_layout, params.rows,
                                                    params.groups);
    }
    if constexpr (kConfig.stacked) return params.matrices * params.matrix_tiles;
    return config::ceil_divide(params.rows, kConfig.tile_rows);
  }
  __device__ float* of_tensor(const config::CastTarget& target) const {
    if constexpr (kConfig.stacked) return target.scale + matrix * target.scale_row_stride;
    return target.scale;
  }
  static __device__ float* of_square(const config::CastTarget& target, long long row,
                                     long long col) {
    return target.scale + row * target.scale_row_stride +
           col / kScaleBlock * target.scale_col_stride;
  }
};

template <TileCastConfig kConfig>
using Tiles = Tile<kConfig>[kConfig.source.parts()];

__device__ inline void* staged_memory() {
  extern __shared__ uint4 staged[];
  return staged;
}

// The pieces that a thread's vectors are made from, on their way to shared memory: each thread
// reads what it has copied itself.
template <TileCastConfig kConfig>
class StagedPieces {
  using Values = Source<kConfig.source, kConfig.format.in, kConfig.vector_loads>;
  static constexpr int kPieces = kConfig.pieces();
  static constexpr int kVector = kConfig.format.vector();
  static constexpr int kRowsAtOnce = kConfig.source.rows_at_once();
  static_assert(kPieces == Values::kPieces);
  // Pieces of 16 bytes that lie next to each other: of either, a warp's are every second.
  static constexpr bool kNeighbours = kConfig.source.reads_neighbours();

 public:
  using Vector = unsigned[kPieces][4];

  __device__ StagedPieces(const Values& source, const Tile<kConfig>& tile) {
#pragma unroll
    for (int row = 0; row < tile.kRows; ++row) {
      const bool exists = tile.template exist<true>(row) > 0;
      if (kRowsAtOnce == 1 && !exists) break;
      source.for_each_piece(row, 0, [&](auto piece, const void* address) {
        constexpr int kBytes = kConfig.source.bytes_of(piece, kVector);
        constexpr bool kThroughL1 = kBytes < 16 || kNeighbours;
        if constexpr (kRowsAtOnce == 1) {
          ptx::copy_async<kBytes, kThroughL1>(slot<piece>(row), address);
        } else {
          ptx::copy_async<kBytes, kThroughL1>(slot<piece>(row), address, exists);
        }
      });
    }
    ptx::copies_commit();
  }

  template <int kPiece = 0>
  static __device__ void read(int row, Vector& pieces) {
    if constexpr (kPiece < kPieces) {
      unsigned words[kConfig.source.slot_bytes(kPiece, kVector) / 4];
      ptx::load_shared_words(slot<kPiece>(row), words);
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(words) / 4); ++i) pieces[kPiece][i] = words[i];
      read<kPiece + 1>(row, pieces);
    }
  }

 private:
  // Slots of one row and piece lie next to each other.
  template <int kPiece>
  static __device__ unsigned slot(int row) {
    constexpr int kOfRow = kConfig.source.slot_bytes_before(kPieces, kVector);
    constexpr int kBefore = kConfig.source.slot_bytes_before(kPiece, kVector);
    constexpr int kBytes = kConfig.source.slot_bytes(kPiece, kVector);
    return ptx::shared_address(staged_memory()) + (row * kOfRow + kBefore) * kConfig.threads() +
           kBytes * static_cast<int>(threadIdx.x);
  }
};

// All tiles of the block, by one read.
template <TileCastConfig kConfig>
__device__ inline void load(const CastParams& params, Tiles<kConfig>& tiles) {
  Tile<kConfig>& tile = tiles[0];
  const Source<kConfig.source, kConfig.format.in, kConfig.vector_loads> source(
      params, tile.first_row() + tile.group * tile.kRows,
      tile.first_col() + tile.lane * tile.kVector);
  if constexpr (!kConfig.is_staged()) {
#pragma unroll
    for (int row = 0; row < tile.kRows; ++row) {
      source.read(row, 0, tile.template exist<kConfig.vector_loads>(row), tile.words[row]);
    }
    if constexpr (kConfig.source.factors) {
#pragma unroll
      for (int row = 0; row < tile.kRows; ++row) {
        source.multiply(row, tile.template exist<kConfig.vector_loads>(row), tile.words[row]);
      }
    }
  } else {
    const StagedPieces<kConfig> staged(source, tile);
    for (Tile<kConfig>& part : tiles) part.clear();
    ptx::copies_wait<0>();
#pragma unroll
    for (int row = 0; row < tile.kRows; ++row) {
      if (row % kConfig.source.rows_at_once() == 0 && tile.template exist<true>(row) == 0) break;
      typename StagedPieces<kConfig>::Vector pieces;
      staged.read(row, pieces);
      if constexpr (kConfig.source.both_halves) {
        source.make_halves(pieces, tile.words[row], tiles[1].words[row]);
      } else {
        source.make(row, 0, pieces, tile.words[row]);
      }
    }
    __syncthreads();  // all threads have read theirs
  }
}

}  // namespace octofold::cast
