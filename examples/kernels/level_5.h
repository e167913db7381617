// Level 5: blocks that stay. There are as many as multiprocessors, and each computes one tile after
// another. The producer goes on with the next tile's stages while the consumers store this one, so
// that a tile's start costs nothing. D leaves by TMA from shared memory: whole lines, and no thread
// waits for them. The order of tiles keeps what neighbours read in L2.
//
// Synchronization: the ring is level 4's, and goes on across tiles; all roles walk the same tiles,
// so their positions agree. Each consumer warp has two slabs, of 16 rows × 64 columns of D, and no
// other warp touches them, so they need no barrier. The lanes write a slab, fence_proxy_async makes
// that visible to the copy engine, __syncwarp says that all have, and one lane commits the store.
// Before a slab is written again that same lane waits until at most one later store, of the other
// slab, has yet to be read. elect_one always picks the same lane, which is the one whose stores
// count.
#pragma once

#include "examples/kernels/level_4.h"

namespace octofold::ladder::level_5 {

using namespace level_4;  // the ring, the roles and their sums

inline constexpr int kSlabBytes = 16 * 128;
inline constexpr int kSlabsBytes = kConsumerThreads / 32 * 2 * kSlabBytes;
// Slabs come first: at multiples of 1024 their swizzle begins anew, as that of stages does.
inline constexpr Launch kLaunch{.threads = kConsumerThreads + 128,
                                .shared_bytes = kSlabsBytes + level_4::kLaunch.shared_bytes,
                                .tile_rows = kTileRows,
                                .tile_columns = kTileColumns,
                                .a_box_rows = kTileRows,
                                .b_box_rows = kTileColumns,
                                .stays = true};

// The walk over tiles of so many rows and columns: bands of eight tiles of rows, in a band column
// by column. So the tiles that are computed at a time are about as high as wide, and read the
// fewest bytes of A and B.
class Tiles {
 public:
  // `height`, `width`: of what a block, or a cluster, computes at a time; `first`: the index of its
  // first, `step`: how many there are.
  __device__ Tiles(const Problem& problem, int height, int width, int first, int step)
      : height_(height),
        width_(width),
        rows_(config::ceil_divide(problem.m, height)),
        columns_(config::ceil_divide(problem.n, width)),
        index_(first),
        step_(step) {}

  __device__ bool has_tile() const { return index_ < rows_ * columns_; }
  __device__ void advance() { index_ += step_; }
  __device__ int row() const { return (first_of_band() + in_band() % rows_of_band()) * height_; }
  __device__ int column() const { return in_band() / rows_of_band() * width_; }

 private:
  static constexpr int kBand = 8;

  __device__ int first_of_band() const { return index_ / (kBand * columns_) * kBand; }
  __device__ int rows_of_band() const { return min(kBand, rows_ - first_of_band()); }
  __device__ int in_band() const { return index_ % (kBand * columns_); }

  int height_, width_, rows_, columns_, index_, step_;
};

// A warp stores its 16 rows of each of two 64s. `row`, `column`: of the first in D; what lies
// beyond D the copy engine leaves out.
__device__ inline void store(const Problem& problem, unsigned slabs, int row, int column,
                             const Sums (&sums)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int box = 0; box < 4; ++box) {
    const int half = box / 2, first = box % 2 * 64;  // columns of the box
    const unsigned slab = slabs + box % 2 * kSlabBytes;
    if (ptx::elect_one()) ptx::tma_store_wait_read<1>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 64; j += 16) {
      // stmatrix: lanes address rows 0 … 15 of eight columns, then of the eight beside them.
      const int line = lane % 16, unit = j / 8 + lane / 16;
      const float* const s = &sums[half][(first + j) / 2];
      ptx::store_matrices(slab + static_cast<unsigned>(line * 128 + (unit ^ line % 8) * 16),
                          ptx::bfloat16_pair(s[0], s[1]), ptx::bfloat16_pair(s[2], s[3]),
                          ptx::bfloat16_pair(s[4], s[5]), ptx::bfloat16_pair(s[6], s[7]));
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::elect_one()) {
      ptx::tma_store(&problem.d_map, slab, column + first, row + 64 * half);
      ptx::tma_store_commit();
    }
  }
}

__global__ void __launch_bounds__(kLaunch.threads, 1)
    kernel(const __grid_constant__ Problem problem) {
  const unsigned memory = ptx::opaque(ptx::swizzled_shared_memory());
  const Ring ring{memory + kSlabsBytes};
  const int warp = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Tiles tiles(problem, kTileRows, kTileColumns, static_cast<int>(blockIdx.x),
              static_cast<int>(gridDim.x));
  config::RingPosition<kStages> position;

  if (threadIdx.x == 0) ring.init_barriers(kConsumerThreads / 32);
  __syncthreads();
  if (warp >= kConsumerThreads / 32) {
    ptx::shrink_registers<kProducerRegisters>();
    if (warp == kConsumerThreads / 32 && ptx::elect_one()) {
      for (; tiles.has_tile(); tiles.advance()) {
        produce(problem, ring, tiles.row(), tiles.column(), position);
      }
    }
  } else {
    ptx::grow_registers<kConsumerRegisters>();
    const int first_row = warp / 4 * 128;
    for (; tiles.has_tile(); tiles.advance()) {
      Sums sums[2];
      consume(
          problem, ring, tiles.row(), tiles.column(), first_row, position,
          [&](unsigned empty) { ptx::mbarrier_arrive_of_lanes(empty, lane); }, sums);
      store(problem, memory + static_cast<unsigned>(warp * 2 * kSlabBytes),
            tiles.row() + first_row + warp % 4 * 16, tiles.column(), sums);
    }
    if (ptx::elect_one()) ptx::tma_store_wait_read<0>();  // shared memory ends with the block
  }
}

}  // namespace octofold::ladder::level_5
