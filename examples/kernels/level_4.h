// Level 4: warps with roles. A producer asks for stages, two warpgroups consume them, and no
// barrier holds all of them: while one warpgroup adds its partial sums in FP32, the other one's
// products keep the tensor cores busy. The producers' registers go to the consumers (`setmaxnreg`),
// whose tile can grow to 256×128: each operand in shared memory is used more often, in fewer bytes
// a product.
//
// Synchronization: each stage has two mbarriers. `full` as in level 3: one arrival, of the
// producer, and kStageBytes. `empty` counts an arrival of each of the eight consumer warps, once
// its wgmma have read the stage. Both sides walk the ring with a RingPosition, whose parity flips
// each round. A consumer waits for `full` with it: phase 0 ends with the first load. The producer
// waits for `empty` with the opposite one: in the first round that is the phase "before" 0, which
// counts as ended, so it need not wait; in the second it is phase 0, which the consumers end.
#pragma once

#include "examples/kernels/level_3.h"
#include "kernels/ptx/warp_arrival.h"
#include "kernels/shared/stages.h"

namespace octofold::ladder::level_4 {

using level_3::add_stage, level_3::row_of_thread, level_3::Sums;

inline constexpr int kTileRows = 256;  // 128 for each consumer warpgroup, in two 64s
inline constexpr int kTileColumns = 128;
inline constexpr int kStages = 4;
inline constexpr int kConsumerThreads = 256;
inline constexpr int kABytes = kTileRows * kDepth;
inline constexpr int kStageBytes = kABytes + kTileColumns * kDepth;
inline constexpr Launch kLaunch{.threads = kConsumerThreads + 128,
                                .shared_bytes = kStages * (kStageBytes + 16),
                                .tile_rows = kTileRows,
                                .tile_columns = kTileColumns,
                                .a_box_rows = kTileRows,
                                .b_box_rows = kTileColumns};
// A block begins with 168 registers for each of 384 threads. No more may be asked for than that,
// or the block hangs: 240 × 256 + 24 × 128 = 168 × 384.
inline constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;

// The ring of stages in shared memory.
struct Ring {
  unsigned memory;

  __device__ unsigned a(int stage) const {
    return memory + static_cast<unsigned>(stage * kStageBytes);
  }
  __device__ unsigned b(int stage) const { return a(stage) + kABytes; }
  __device__ unsigned full(int stage) const {
    return memory + static_cast<unsigned>(kStages * kStageBytes + 8 * stage);
  }
  __device__ unsigned empty(int stage) const { return full(kStages + stage); }

  // One thread. `consumers`: warps that read a stage, of all blocks that it comes to.
  __device__ void init_barriers(unsigned consumers) const {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(full(stage), 1);
      ptx::mbarrier_init(empty(stage), consumers);
    }
    ptx::fence_mbarrier_init();
  }
};

// One thread: asks for all stages of a tile.
__device__ inline void produce(const Problem& problem, const Ring& ring, int row, int column,
                               config::RingPosition<kStages>& position) {
#pragma unroll 1
  for (int k = 0; k < problem.k; k += kDepth, position.advance()) {
    const int stage = position.stage;
    ptx::mbarrier_wait(ring.empty(stage), position.parity ^ 1);
    ptx::mbarrier_arrive_expect_bytes(ring.full(stage), kStageBytes);
    ptx::tma_load(ring.a(stage), &problem.a_map, ring.full(stage), k, row);
    ptx::tma_load(ring.b(stage), &problem.b_map, ring.full(stage), k, column);
  }
}

// A consumer warpgroup sums its 128 rows of a tile. `first_row`: of these in the tile. `release`:
// how a warp, whose lanes have met, says that it has read a stage.
template <typename Release>
__device__ void consume(const Problem& problem, const Ring& ring, int row, int column,
                        int first_row, config::RingPosition<kStages>& position, Release&& release,
                        Sums (&sums)[2]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[0][i] = sums[1][i] = 0;
#pragma unroll 1
  for (int k_block = 0; k_block < problem.k_blocks(); ++k_block, position.advance()) {
    const int stage = position.stage;
    ptx::mbarrier_wait(ring.full(stage), position.parity);
    // One after the other, so that both share the 64 registers of partial sums.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int of_half = first_row + 64 * half;
      add_stage(problem, ring.a(stage) + static_cast<unsigned>(of_half * kDepth), ring.b(stage),
                row + of_half + row_of_thread(), column, k_block, sums[half]);
    }
    __syncwarp();
    release(ring.empty(stage));
  }
}

__global__ void __launch_bounds__(kLaunch.threads, 1)
    kernel(const __grid_constant__ Problem problem) {
  const Ring ring{ptx::opaque(ptx::swizzled_shared_memory())};
  const int tiles_in_row = config::ceil_divide(problem.n, kTileColumns);
  const int row = static_cast<int>(blockIdx.x) / tiles_in_row * kTileRows;
  const int column = static_cast<int>(blockIdx.x) % tiles_in_row * kTileColumns;
  const int warp = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  config::RingPosition<kStages> position;

  if (threadIdx.x == 0) ring.init_barriers(kConsumerThreads / 32);
  __syncthreads();
  if (warp >= kConsumerThreads / 32) {
    ptx::shrink_registers<kProducerRegisters>();
    if (warp == kConsumerThreads / 32 && ptx::elect_one()) {
      produce(problem, ring, row, column, position);
    }
  } else {
    ptx::grow_registers<kConsumerRegisters>();
    const int first_row = warp / 4 * 128;
    Sums sums[2];
    consume(
        problem, ring, row, column, first_row, position,
        [&](unsigned empty) { ptx::mbarrier_arrive_of_lanes(empty, lane); }, sums);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      level_3::store(problem, row + first_row + 64 * half + row_of_thread(), column + lane % 4 * 2,
                     sums[half]);
    }
  }
}

}  // namespace octofold::ladder::level_4
