// Level 2: tiles in shared memory, and products by warps. A block of threads computes 128×64 of D:
// what it copies of A is used 64 times, and of B 128 times. A warp multiplies by `mma.sync`, 16×8
// of D over 32 of K with one instruction. While a stage of 128 of K is multiplied, the next ones
// are on their way (`cp.async`).
//
// Synchronization: one __syncthreads for each stage. It says that all threads' copies of the stage
// have landed, since each has waited for its own, and that all warps have multiplied the stage
// before, whose place the copies that follow overwrite.
#pragma once

#include "examples/kernels/problem.h"
#include "kernels/ptx/convert.h"
#include "kernels/ptx/mma.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::ladder::level_2 {

inline constexpr int kTileRows = 128, kTileColumns = 64;
inline constexpr int kStages = 4;
inline constexpr int kABytes = kTileRows * kDepth;
inline constexpr int kStageBytes = kABytes + kTileColumns * kDepth;
inline constexpr Launch kLaunch{.threads = 256,
                                .shared_bytes = kStages * kStageBytes,
                                .tile_rows = kTileRows,
                                .tile_columns = kTileColumns};

// A warp has 32 rows × 32 columns of the tile: two sixteens of rows × four eights of columns. The
// four sums of each: kernels/ptx/mma.h.
using Sums = float[2][4][4];

// The place of a unit of 16 bytes in a row of 128. Units change places from row to row, so that
// the eight rows of one unit, which ldmatrix reads at a time, lie in different banks.
__device__ inline unsigned place_of(int row, int unit) {
  return static_cast<unsigned>(row * kDepth + (unit ^ row % 8) * 16);
}

// The thread's part of the rows of an operand in a tile, from row `first` of so many. Beyond them,
// and beyond K, zeros come to lie.
template <int kRows>
__device__ void copy_operand(unsigned target, const unsigned char* operand, int first, int rows,
                             int k, int depth) {
  const int unit = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
  for (int i = 0; i < kRows; i += kLaunch.threads / 8) {
    const int row = i + static_cast<int>(threadIdx.x) / 8;
    const bool exists = first + row < rows && k + 16 * unit < depth;
    const long long at = static_cast<long long>(first + row) * depth + k + 16 * unit;
    ptx::copy_unit_async(target + place_of(row, unit), operand + (exists ? at : 0),
                         exists ? 16 : 0);
  }
}

// The warp's products over a stage, from zero, go into sums of their own and from there, scaled, to
// those of the tile: scales change every 128 of K.
__device__ inline void add_stage(const Problem& problem, unsigned stage, int row, int column,
                                 int first_row, int first_column, int k_block, Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float b_scale = problem.b_scale(column, k_block);
  float factors[2][2];  // of rows g and g + 8 of each sixteen; g = lane / 4
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    factors[i / 2][i % 2] = problem.a_scale(row + first_row + 8 * i + lane / 4, k_block) * b_scale;
  }
  Sums partial = {};
#pragma unroll
  for (int unit = 0; unit < kDepth / 16; unit += 2) {  // 32 of K
    unsigned a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ptx::load_matrices(stage + place_of(first_row + 16 * i + lane % 16, unit + lane / 16), a[i]);
    }
#pragma unroll
    for (int j = 0; j < 4; j += 2) {  // one ldmatrix brings two eights of columns
      unsigned b[4];
      const int of_lane = first_column + 8 * j + lane / 16 * 8 + lane % 8;
      ptx::load_matrices(stage + kABytes + place_of(of_lane, unit + lane / 8 % 2), b);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        using enum DType;
        ptx::multiply_add_fp8<kE4M3, kE4M3>(partial[i][j], a[i], {b[0], b[1]});
        ptx::multiply_add_fp8<kE4M3, kE4M3>(partial[i][j + 1], a[i], {b[2], b[3]});
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int at = 0; at < 16; ++at) {
      sums[i][at / 4][at % 4] += partial[i][at / 4][at % 4] * factors[i][at / 2 % 2];
    }
  }
}

__global__ void __launch_bounds__(kLaunch.threads) kernel(const __grid_constant__ Problem problem) {
  const unsigned memory = ptx::dynamic_shared_memory();
  const int tiles_in_row = config::ceil_divide(problem.n, kTileColumns);
  const int row = static_cast<int>(blockIdx.x) / tiles_in_row * kTileRows;
  const int column = static_cast<int>(blockIdx.x) % tiles_in_row * kTileColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = warp / 2 * 32, first_column = warp % 2 * 32;  // of the warp in the tile

  // One group of copies is begun for each stage, an empty one behind the last, so that the count of
  // groups says which have landed.
  const auto begin_copies = [&](int k_block) {
    if (k_block < problem.k_blocks()) {
      const unsigned stage = memory + k_block % kStages * kStageBytes;
      copy_operand<kTileRows>(stage, problem.a, row, problem.m, k_block * kDepth, problem.k);
      copy_operand<kTileColumns>(stage + kABytes, problem.b, column, problem.n, k_block * kDepth,
                                 problem.k);
    }
    ptx::copies_commit();
  };
  for (int k_block = 0; k_block < kStages - 1; ++k_block) begin_copies(k_block);
  Sums sums = {};
#pragma unroll 1
  for (int k_block = 0; k_block < problem.k_blocks(); ++k_block) {
    ptx::copies_wait<kStages - 2>();  // kStages - 1 + k_block groups were begun: this one is there
    __syncthreads();
    begin_copies(k_block + kStages - 1);
    add_stage(problem, memory + k_block % kStages * kStageBytes, row, column, first_row,
              first_column, k_block, sums);
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int to = row + first_row + 8 * i + lane / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = column + first_column + 8 * j + lane % 4 * 2;
      if (to >= problem.m || at >= problem.n) continue;
      const float* const pair = &sums[i / 2][j][i % 2 * 2];
      *reinterpret_cast<unsigned*>(problem.d + static_cast<long long>(to) * problem.n + at) =
          ptx::bfloat16_pair(pair[0], pair[1]);
    }
  }
}

}  // namespace octofold::ladder::level_2
