// Shared memory of attention over a latent by warpgroups, and what its barriers mean.
#pragma once

#include "kernels/attention/config/warpgroup_latent.h"
#include "kernels/ptx/warp_arrival.h"

namespace octofold::attention {

using config::WarpgroupLatentConfig;

template <WarpgroupLatentConfig kConfig>
struct WarpgroupLatentMemory {
  unsigned base;  // a multiple of 1024

  __device__ unsigned queries() const { return base; }
  // Keys as 16-bit numbers, the first of which are values.
  __device__ unsigned keys(int i) const {
    return base + static_cast<unsigned>(kConfig.stages_offset() + i * kConfig.stage_bytes());
  }
  __device__ unsigned weights() const { return base + kConfig.weights_offset(); }
  __device__ unsigned factors(unsigned row) const {
    return base + kConfig.factors_offset() + kConfig.factor_bytes() * row;
  }
  __device__ unsigned scales(int i) const {
    return base + static_cast<unsigned>(kConfig.scales_offset() + i * 8 * kConfig.keys);
  }
  __device__ unsigned value_scales(int i) const { return scales(i) + 4 * kConfig.keys; }
  // All that a stage holds is there; all warps that multiply have read it.
  __device__ unsigned full(int i) const {
    return base + static_cast<unsigned>(kConfig.barriers_offset() + 8 * i);
  }
  __device__ unsigned empty(int i) const { return full(kConfig.stages + i); }
  // The same of weights.
  __device__ unsigned weights_full() const { return full(2 * kConfig.stages); }
  __device__ unsigned weights_empty() const { return full(2 * kConfig.stages + 1); }

  __device__ void init_barriers() const {
    for (int i = 0; i < kConfig.stages; ++i) {
      ptx::mbarrier_init(full(i), kConfig.producer_threads() / 32 * ptx::kArrivalsOfWarp);
      ptx::mbarrier_init(empty(i), 8 * ptx::kArrivalsOfWarp);
    }
    ptx::mbarrier_init(weights_full(), 4 * ptx::kArrivalsOfWarp);
    ptx::mbarrier_init(weights_empty(), 4 * ptx::kArrivalsOfWarp);
    ptx::fence_mbarrier_init();
  }
};

}  // namespace octofold::attention
