// The problem that all levels of the ladder solve (docs/kernels/ladder.md), and how each is
// launched:
//
//   D[m, n] = Σ over blocks of 128 of K: a_scale · b_scale · Σ over the block: A[m, k] · B[n, k]
//
// A and B are e4m3, sums FP32, D bfloat16. A has a scale for each row and 128 of K (1x128), B one
// for each 128 rows and 128 of K (128x128).
#pragma once

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/stages.h"

namespace octofold::ladder {

inline constexpr int kDepth =
    128;  // values of K with one scale: a stage of all levels but the first

struct Problem {
  int m, n, k;             // n a multiple of 8, k of 16: TMA's rows are multiples of 16 bytes
  const unsigned char* a;  // [m, k]
  const unsigned char* b;  // [n, k]
  const float* a_scales;   // [blocks of k, m], so that rows of a tile have theirs side by side
  const float* b_scales;   // [blocks of n, blocks of k]
  unsigned short* d;       // [m, n]
  // The same matrices for TMA, from level 3 on: boxes of 128 bytes × as many rows as the Launch
  // says (of D: 64 columns × 16 rows), under the 128-byte swizzle.
  config::TensorMap a_map, b_map, d_map;

  __device__ int k_blocks() const { return config::ceil_divide(k, kDepth); }
  // Rows and columns beyond the matrix get scales of its last ones: nobody stores their products.
  __device__ float a_scale(int row, int k_block) const {
    return a_scales[static_cast<long long>(k_block) * m + min(row, m - 1)];
  }
  __device__ float b_scale(int column, int k_block) const {
    return b_scales[min(column, n - 1) / 128 * k_blocks() + k_block];
  }
};

struct Launch {
  int threads;
  int shared_bytes;
  int tile_rows, tile_columns;         // of D, for each block of threads
  int a_box_rows = 0, b_box_rows = 0;  // 0: no tensor maps
  int cluster = 1;
  bool stays = false;  // as many blocks as multiprocessors, each for many tiles; else one for each
};

}  // namespace octofold::ladder
