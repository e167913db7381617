// The block's shared memory: SmemLayout's offsets as addresses, and the barriers' meaning.
#pragma once

#include "kernels/config/gemm_config.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::sm90 {

template <config::GemmConfig kConfig>
struct SharedMemory {
  static constexpr config::SmemLayout kLayout{kConfig};
  unsigned base;

  __device__ unsigned a(int stage) const { return base + kLayout.a + stage * kLayout.a_bytes; }
  __device__ unsigned b(int stage) const { return base + kLayout.b + stage * kLayout.b_bytes; }
  __device__ unsigned scale_a(int stage) const {
    return base + kLayout.scale_a + stage * kLayout.scale_a_bytes;
  }
  __device__ unsigned scale_b(int stage) const {
    return base + kLayout.scale_b + stage * kLayout.scale_b_bytes;
  }
  __device__ unsigned output() const { return base + kLayout.output; }

  // Operands and scales of a stage are there; every math warp that reads them, of every block that
  // they are multicast with, is done with them.
  __device__ unsigned full(int stage) const { return base + kLayout.barriers + 8 * stage; }
  __device__ unsigned empty(int stage) const { return full(kConfig.stages + stage); }
  // The tile of D is written; the copy engine has read it.
  __device__ unsigned output_full() const { return full(2 * kConfig.stages); }
  __device__ unsigned output_empty() const { return full(2 * kConfig.stages + 1); }

  // Threads of the loading warpgroup that copy operands where TMA cannot, and of its warps for
  // scales.
  static constexpr unsigned kCopyThreads = 64;
  static constexpr unsigned kScaleThreads = 64;

  __device__ void init_barriers() const {
    constexpr unsigned kMathWarps = 4 * kConfig.math_warpgroups;
    constexpr unsigned kLoaders = (kConfig.load == config::OperandLoad::kTma ? 1 : kCopyThreads) +
                                  (config::has_block_scales(kConfig.scaling) ? kScaleThreads : 0);
    for (int stage = 0; stage < kConfig.stages; ++stage) {
      ptx::mbarrier_init(full(stage), kLoaders);
      ptx::mbarrier_init(empty(stage), kMathWarps * kConfig.cluster_size());
    }
    ptx::mbarrier_init(output_full(), kMathWarps);
    ptx::mbarrier_init(output_empty(), 1);
    ptx::fence_mbarrier_init();
  }
};

}  // namespace octofold::sm90
