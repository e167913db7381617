// Shared memory of attention by warpgroups, and what its barriers mean.
#pragma once

#include "kernels/attention/config/warpgroup_queries.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/ptx/warp_arrival.h"

namespace octofold::attention {

using config::WarpgroupQueriesConfig;

template <WarpgroupQueriesConfig kConfig>
struct WarpgroupMemory {
  static constexpr int kHalfPair = kConfig.pair_bytes() / 2;

  unsigned base;  // a multiple of 1024

  // 64 rows of 16-bit numbers; for FP8 scores of codes, in the first panel.
  __device__ unsigned queries(int warpgroup) const {
    return base + static_cast<unsigned>(warpgroup * 64 * kConfig.kPanelRow);
  }
  // The divisors of these: an FP32 number for each row.
  __device__ unsigned query_units(int warpgroup) const {
    return base + static_cast<unsigned>(kConfig.query_units_offset() + warpgroup * 64 * 4);
  }
  // Even stages have keys and odd ones values, as 16-bit numbers; keys of FP8 scores are codes, in
  // the first panel.
  __device__ unsigned keys(int stage) const {
    return base + kConfig.stages_offset() + static_cast<unsigned>(stage * kHalfPair);
  }
  __device__ unsigned values(int stage) const {
    return keys(stage - 1) + kConfig.key_stage_bytes();
  }
  __device__ unsigned scales(int i) const {
    return base + static_cast<unsigned>(kConfig.scales_offset() + i * 4 * kConfig.keys);
  }
  // All that a stage holds is there; all warps that multiply have read it.
  __device__ unsigned full(int i) const {
    return base + static_cast<unsigned>(kConfig.barriers_offset() + 8 * i);
  }
  __device__ unsigned empty(int i) const { return full(kConfig.stages + i); }

  __device__ void init_barriers() const {
    for (int i = 0; i < kConfig.stages; ++i) {
      ptx::mbarrier_init(full(i), 4 * ptx::kArrivalsOfWarp);
      ptx::mbarrier_init(empty(i), 4 * kConfig.warpgroups * ptx::kArrivalsOfWarp);
    }
    ptx::fence_mbarrier_init();
  }
};

// The place of 16 bytes of a row of a panel, by the 128-byte swizzle.
__device__ inline unsigned swizzled(unsigned row, unsigned unit) {
  return row * 128 + 16 * (unit ^ row % 8);
}

// Tiles of 8 columns as one array, as wgmma has them.
template <int kTiles>
__device__ inline float (&flat(float (&tiles)[kTiles][4]))[4 * kTiles] {
  return reinterpret_cast<float (&)[4 * kTiles]>(tiles);
}

}  // namespace octofold::attention
