// The block's shared memory: Sm90SmemLayout's offsets as addresses, and the barriers' meaning.
#pragma once

#include "kernels/config/sm90_gemm.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::sm90 {

template <config::Sm90GemmConfig kConfig>
struct SharedMemory {
  static constexpr config::Sm90SmemLayout kLayout{kConfig};
  unsigned base;

  __device__ unsigned rows(int stage) const {
    return base + kLayout.rows + stage * kLayout.rows_bytes;
  }
  __device__ unsigned columns(int stage) const {
    return base + kLayout.columns + stage * kLayout.columns_bytes;
  }
  __device__ unsigned row_scales(int stage) const {
    return base + kLayout.row_scales + stage * kLayout.row_scales_bytes;
  }
  __device__ unsigned column_scales(int stage) const {
    return base + kLayout.column_scales + stage * kLayout.column_scales_bytes;
  }
  __device__ unsigned output() const { return base + kLayout.output; }

  // Operands and scales of a stage are there; every math warp that reads them, of every block that
  // they are multicast with, is done with them.
  __device__ unsigned full(int stage) const { return base + kLayout.barriers + 8 * stage; }
  __device__ unsigned empty(int stage) const { return full(kConfig.stages + stage); }
  // The tile of D is written; the copy engine has read it.
  __device__ unsigned output_full() const { return full(2 * kConfig.stages); }
  __device__ unsigned output_empty() const { return full(2 * kConfig.stages + 1); }

  // Threads of the loading warpgroup that copy operands where TMA cannot; those of each warp that
  // copies an operand's scales, which has nothing to do where none vary along K.
  static constexpr unsigned kCopyThreads = 64;
  static constexpr unsigned kScaleThreads = 32;

  __device__ void init_barriers() const {
    constexpr unsigned kMathWarps = 4 * kConfig.math_warpgroups;
    constexpr unsigned kProducers = (kConfig.load == config::OperandLoad::kTma ? 1 : kCopyThreads) +
                                    (varies_along_k(kConfig.rows().scales) ? kScaleThreads : 0) +
                                    (varies_along_k(kConfig.columns().scales) ? kScaleThreads : 0);
    for (int stage = 0; stage < kConfig.stages; ++stage) {
      ptx::mbarrier_init(full(stage), kProducers);
      ptx::mbarrier_init(empty(stage), kMathWarps * kConfig.cluster_size());
    }
    ptx::mbarrier_init(output_full(), kMathWarps);
    ptx::mbarrier_init(output_empty(), 1);
    ptx::fence_mbarrier_init();
  }
};

}  // namespace octofold::sm90
