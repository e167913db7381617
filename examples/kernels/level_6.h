// Level 6: clusters. Two blocks on neighbouring multiprocessors compute 256×256 of D, side by side.
// Both need the same rows of A: each loads half of them, and the copy engine writes that half into
// the shared memory of both (multicast). L2 sends 32 KB a stage and block in place of 48.
//
// Synchronization: both blocks make the same walk in step, a stage of one being a stage of the
// other. `full` of either block counts one arrival, of its own producer, and kStageBytes: its own
// half of A, the other's half and its own B. The other's half may land before this block's producer
// has said how many bytes it expects; the phase cannot end before, since that arrival is missing.
// It cannot land in an earlier phase either: the other producer sends it only after this block's
// consumers have said that the stage is empty, and they waited for the phase before. Hence `empty`
// counts the eight consumer warps of both blocks, and each of them arrives at both. Nobody may
// leave while the other block can still write to its memory or arrive at its barriers: the cluster
// ends as it began, by a barrier of all its threads.
#pragma once

#include "examples/kernels/level_5.h"

namespace octofold::ladder::level_6 {

using namespace level_5;  // its tiles and stores, and with them level 4

inline constexpr int kBlocks = 2;  // of a cluster
inline constexpr int kShareOfRows = kTileRows / kBlocks;
inline constexpr Launch kLaunch{.threads = level_5::kLaunch.threads,
                                .shared_bytes = level_5::kLaunch.shared_bytes,
                                .tile_rows = kTileRows,
                                .tile_columns = kTileColumns,
                                .a_box_rows = kShareOfRows,
                                .b_box_rows = kTileColumns,
                                .cluster = kBlocks,
                                .stays = true};

// One thread: asks for this block's share of all stages of a tile.
__device__ inline void produce(const Problem& problem, const Ring& ring, int rank, int row,
                               int column, config::RingPosition<kStages>& position) {
  const int share = rank * kShareOfRows;
#pragma unroll 1
  for (int k = 0; k < problem.k; k += kDepth, position.advance()) {
    const int stage = position.stage;
    ptx::mbarrier_wait(ring.empty(stage), position.parity ^ 1);
    ptx::mbarrier_arrive_expect_bytes(ring.full(stage), kStageBytes);
    ptx::tma_load_multicast(ring.a(stage) + static_cast<unsigned>(share * kDepth), &problem.a_map,
                            ring.full(stage), k, row + share, (1 << kBlocks) - 1);
    ptx::tma_load(ring.b(stage), &problem.b_map, ring.full(stage), k, column);
  }
}

__global__ void __launch_bounds__(kLaunch.threads, 1)
    kernel(const __grid_constant__ Problem problem) {
  const unsigned memory = ptx::opaque(ptx::swizzled_shared_memory());
  const Ring ring{memory + kSlabsBytes};
  const int warp = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(ptx::cluster_rank());
  // An odd number of tiles side by side leaves the last block one outside of D: it reads zeros and
  // stores nothing, but takes its share of the loads.
  Tiles tiles(problem, kTileRows, kBlocks * kTileColumns, static_cast<int>(blockIdx.x) / kBlocks,
              static_cast<int>(gridDim.x) / kBlocks);
  const int first_column = rank * kTileColumns;
  config::RingPosition<kStages> position;

  if (threadIdx.x == 0) ring.init_barriers(kBlocks * kConsumerThreads / 32);
  ptx::cluster_sync();  // the first copy already arrives at the other block's barriers
  if (warp >= kConsumerThreads / 32) {
    ptx::shrink_registers<kProducerRegisters>();
    if (warp == kConsumerThreads / 32 && ptx::elect_one()) {
      for (; tiles.has_tile(); tiles.advance()) {
        produce(problem, ring, rank, tiles.row(), tiles.column() + first_column, position);
      }
    }
    __syncwarp();
  } else {
    ptx::grow_registers<kConsumerRegisters>();
    const int first_row = warp / 4 * 128;
    for (; tiles.has_tile(); tiles.advance()) {
      const int column = tiles.column() + first_column;
      Sums sums[2];
      consume(
          problem, ring, tiles.row(), column, first_row, position,
          [&](unsigned empty) { ptx::mbarrier_arrive_at_ranks<kBlocks>(empty, lane); }, sums);
      store(problem, memory + static_cast<unsigned>(warp * 2 * kSlabBytes),
            tiles.row() + first_row + warp % 4 * 16, column, sums);
    }
    if (ptx::elect_one()) ptx::tma_store_wait_read<0>();
    __syncwarp();
  }
  ptx::cluster_sync();
}

}  // namespace octofold::ladder::level_6
