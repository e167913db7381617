// The layout of the block's shared memory, as addresses, and the meaning of its barriers.
#pragma once

#include "kernels/ptx/shared_memory.h"
#include "kernels/ptx/warp_arrival.h"
#include "kernels/shared/ring_position.h"
#include "kernels/weight_only_sm90/config/config.h"

namespace octofold::weight_only_sm90 {

using config::Sm90WeightOnlyConfig;
using config::Sm90WeightOnlyParams;

template <Sm90WeightOnlyConfig kConfig>
struct SharedMemory {
  unsigned base;

  // Codes: rows of 128 along the depth. Transposed, for each 128 columns 128 rows of them.
  __device__ unsigned w(int stage) const { return base + stage * kConfig.stage_bytes(); }
  // Rows of x, 64 of the depth in each half.
  __device__ unsigned x(int stage, int half) const {
    return w(stage) + kConfig.w_bytes() + half * kConfig.x_half_bytes();
  }
  __device__ unsigned scales(int stage) const { return x(stage, 2); }
  // The address of eight rows of out of a warpgroup, in one of two places.
  __device__ unsigned output(int warpgroup, int place) const {
    return base + kConfig.output_at() + (2 * warpgroup + place) * 8 * kConfig.stored_row_bytes();
  }
  // In place of the ring.
  __device__ unsigned group_sums(int group) const {
    return base + (group - 1) * kConfig.group_sums_bytes();
  }
  __device__ unsigned slices() const { return base; }

  // All of a stage has arrived.
  __device__ unsigned full(int stage) const { return base + kConfig.barriers_at() + 8 * stage; }
  // All warps that multiply what it holds are done with it.
  __device__ unsigned empty(int stage) const { return full(kConfig.stages + stage); }
  // The sums of the other blocks that share the tile have arrived.
  __device__ unsigned slices_full() const { return full(2 * kConfig.stages); }

  // The first warp. `producers`: arrivals that make a stage full.
  __device__ void init_barriers(unsigned producers) const {
    const int stage = static_cast<int>(threadIdx.x);
    if (stage < kConfig.stages) {
      ptx::mbarrier_init(full(stage), producers);
      ptx::mbarrier_init(empty(stage), kConfig.group_threads() / 32 * ptx::kArrivalsOfWarp);
    }
    if (stage == 0) ptx::mbarrier_init(slices_full(), 1);
    ptx::fence_mbarrier_init();
  }
};

}  // namespace octofold::weight_only_sm90
