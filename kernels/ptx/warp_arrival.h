// One arrival at an mbarrier for a warp.
#pragma once

#include "kernels/ptx/mbarrier.h"

namespace octofold::ptx {

// Lanes that arrive for a warp. One is enough, once all have met. racecheck of compute-sanitizer
// does not follow that order and names what other lanes have read and written before: with 32 here
// it has nothing to name (docs/gpu.md, "Sanitizers").
inline constexpr int kArrivalsOfWarp = 1;

// Arrives for a warp whose lanes have met already. `lane` is the calling one.
__device__ inline void mbarrier_arrive_of_lanes(unsigned barrier, int lane) {
  if (lane < kArrivalsOfWarp) mbarrier_arrive(barrier);
}

// The same at the barrier with this offset in each of so many blocks of the cluster.
template <int kRanks>
__device__ void mbarrier_arrive_at_ranks(unsigned barrier, int lane) {
#pragma unroll
  for (int i = 0; i < kRanks * kArrivalsOfWarp; i += 32) {
    const int arrival = i + lane;
    if (arrival < kRanks * kArrivalsOfWarp)
      mbarrier_arrive_at_rank(barrier, static_cast<unsigned>(arrival / kArrivalsOfWarp));
  }
}

__device__ inline void mbarrier_arrive_for_warp(unsigned barrier) {
  __syncwarp();
  mbarrier_arrive_of_lanes(barrier, static_cast<int>(threadIdx.x) % 32);
}

}  // namespace octofold::ptx
