// Level 3: the copy engine brings operands (TMA), and warpgroups of four warps multiply them
// straight from shared memory (`wgmma`). One thread asks for a box of 128 rows × 128 bytes; no
// register holds an operand, and no thread computes its addresses.
//
// Synchronization: each stage of the ring has an mbarrier, `full`. It counts one arrival a phase,
// of the thread that asks, and the bytes of both boxes; TMA writes zeros for what lies beyond a
// matrix, and counts them too, so the bytes are always kStageBytes. Stage s serves k_block = s, s +
// kStages, …: the i-th use of it is phase i, and a wait names the parity of the phase that is to
// end, i % 2. Nobody can be a whole phase late: a stage is asked for again behind a __syncthreads
// that follows every thread's wait for its phase before.
#pragma once

#include "examples/kernels/problem.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/convert.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/ptx/wgmma_fp8.h"

namespace octofold::ladder::level_3 {

inline constexpr int kTile = 128;  // rows, and columns, of D: 64 rows for each of two warpgroups
inline constexpr int kStages = 4;
inline constexpr int kOperandBytes = kTile * kDepth;
inline constexpr int kStageBytes = 2 * kOperandBytes;
inline constexpr Launch kLaunch{.threads = 256,
                                .shared_bytes = kStages * (kStageBytes + 8),
                                .tile_rows = kTile,
                                .tile_columns = kTile,
                                .a_box_rows = kTile,
                                .b_box_rows = kTile};

// A thread's sums of 64 rows × 128 columns. With g = lane / 4, t = lane % 4, warp w of the
// warpgroup: [4 j], [4 j + 1] are of row 16 w + g, columns 8 j + 2 t and the next; [4 j + 2], [4 j
// + 3] of the row 8 below.
using Sums = float[64];

// Row of its warpgroup's 64 that the thread's first sum belongs to.
__device__ inline int row_of_thread() {
  return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
}

// Adds the products of 64 rows × 128 columns over a stage. `a`, `b`: where the operands begin, in
// rows of 128 bytes. `row`: the thread's first one in D.
//
// FP8 tensor cores keep about 14 bits of a sum. So the products of a stage start from zero in
// partial sums, and these are added in FP32, times the stage's scales: sums of two levels.
__device__ inline void add_stage(const Problem& problem, unsigned a, unsigned b, int row,
                                 int column, int k_block, Sums& sums) {
  const float b_scale = problem.b_scale(column, k_block);
  const float upper = problem.a_scale(row, k_block) * b_scale;
  const float lower = problem.a_scale(row + 8, k_block) * b_scale;
  Sums partial;
  ptx::wgmma_fence();  // the registers' earlier accesses come before the products'
#pragma unroll
  for (int k = 0; k < kDepth; k += 32) {
    using enum DType;
    ptx::WgmmaFp8<128>::issue<kE4M3, kE4M3>(partial, ptx::k_major_descriptor(a, k),
                                            ptx::k_major_descriptor(b, k), k > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::wgmma_pin(partial);
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i] += partial[i] * (i / 2 % 2 == 0 ? upper : lower);
}

// Stores the thread's sums, in pairs of columns. `row`, `column`: of the first one.
__device__ inline void store(const Problem& problem, int row, int column, const Sums& sums) {
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    const int to = row + i / 2 % 2 * 8, at = column + i / 4 * 8;
    if (to >= problem.m || at >= problem.n) continue;
    *reinterpret_cast<unsigned*>(problem.d + static_cast<long long>(to) * problem.n + at) =
        ptx::bfloat16_pair(sums[i], sums[i + 1]);
  }
}

__global__ void __launch_bounds__(kLaunch.threads) kernel(const __grid_constant__ Problem problem) {
  const unsigned memory = ptx::opaque(ptx::swizzled_shared_memory());
  const auto stage_of = [&](int k_block) { return memory + k_block % kStages * kStageBytes; };
  const auto full = [&](int k_block) {
    return memory + kStages * kStageBytes + k_block % kStages * 8;
  };
  const int tiles_in_row = config::ceil_divide(problem.n, kTile);
  const int row = static_cast<int>(blockIdx.x) / tiles_in_row * kTile;
  const int column = static_cast<int>(blockIdx.x) % tiles_in_row * kTile;
  // By a shuffle the compiler knows that a warp agrees: descriptors are in uniform registers.
  const int warp = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32, 0);
  const int first_row = warp / 4 * 64;  // of the warpgroup in the tile

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) ptx::mbarrier_init(full(stage), 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const auto load = [&](int k_block) {
    if (warp != 0 || k_block >= problem.k_blocks() || !ptx::elect_one()) return;
    const unsigned stage = stage_of(k_block);
    ptx::mbarrier_arrive_expect_bytes(full(k_block), kStageBytes);
    ptx::tma_load(stage, &problem.a_map, full(k_block), k_block * kDepth, row);
    ptx::tma_load(stage + kOperandBytes, &problem.b_map, full(k_block), k_block * kDepth, column);
  };
  for (int stage = 0; stage < kStages; ++stage) load(stage);

  Sums sums = {};
#pragma unroll 1
  for (int k_block = 0; k_block < problem.k_blocks(); ++k_block) {
    ptx::mbarrier_wait(full(k_block), static_cast<unsigned>(k_block / kStages % 2));
    const unsigned stage = stage_of(k_block);
    add_stage(problem, stage + static_cast<unsigned>(first_row * kDepth), stage + kOperandBytes,
              row + first_row + row_of_thread(), column, k_block, sums);
    __syncthreads();  // both warpgroups have read the stage: wgmma_wait is behind them
    load(k_block + kStages);
    __syncwarp();  // warp 0 is together again for its next wgmma
  }
  store(problem, row + first_row + row_of_thread(), column + static_cast<int>(threadIdx.x) % 4 * 2,
        sums);
}

}  // namespace octofold::ladder::level_3
