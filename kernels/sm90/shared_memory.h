// The block's shared memory: Sm90SmemLayout's offsets as addresses, what its barriers mean, and
// when blocks of a cluster may use each other's.
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/ptx/warp_arrival.h"
#include "kernels/sm90/config/checks.h"

namespace octofold::sm90 {

using config::Sm90GemmConfig;

template <Sm90GemmConfig kConfig>
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
  // The tile of D, or its boxes, or the slabs of the consumer warps.
  __device__ unsigned output() const { return base + kLayout.output; }
  // Operands and scales of a stage have arrived.
  __device__ unsigned full(int stage) const { return base + kLayout.barriers + 8 * stage; }
  // All consumer warps that read the stage have done so, in every block that it was multicast to.
  __device__ unsigned empty(int stage) const { return full(kConfig.stages + stage); }
  // The tile of D is written; the copy engine has read it.
  __device__ unsigned output_full() const { return full(2 * kConfig.stages); }
  __device__ unsigned output_empty() const { return full(2 * kConfig.stages + 1); }
  // The accumulators of the other blocks of a split K have arrived.
  __device__ unsigned slices_full() const { return full(2 * kConfig.stages + 2); }

  // Places beside the stages: boxes in which C is prefetched and D leaves, then tiles that the
  // producer passes to the consumers. What is for these has arrived; all their warps are done.
  __device__ unsigned place_full(int place) const { return full(2 * kConfig.stages + 3 + place); }
  __device__ unsigned place_done(int place) const { return place_full(kLayout.places + place); }

  // The first warp. `producers`: arrivals that make a stage full.
  __device__ void init_barriers(unsigned producers) const {
    constexpr unsigned kConsumers = kConfig.consumer_threads() / 32 * ptx::kArrivalsOfWarp;
    static_assert(kConfig.stages <= 32 && kLayout.places <= 32);
    const int stage = static_cast<int>(threadIdx.x);
    if (stage < kConfig.stages) {
      ptx::mbarrier_init(full(stage), producers);
      ptx::mbarrier_init(empty(stage), kConsumers * kConfig.multicast_blocks());
    }
    if (stage < kLayout.places) {
      ptx::mbarrier_init(place_full(stage), 1);
      ptx::mbarrier_init(place_done(stage), kConsumers);
    }
    if (stage == 0) {
      ptx::mbarrier_init(output_full(), kConsumers);
      ptx::mbarrier_init(output_empty(), 1);
      ptx::mbarrier_init(slices_full(), 1);
    }
    ptx::fence_mbarrier_init();
  }
};

// ---- Cluster: how the blocks of a cluster work together.
//
//   begin()                           the barriers of this block are initialized
//   rank()                            the block's part of a split K
//   reduce(smem, rank, accumulators)  a tile is summed; split_k.h adds those of the other blocks
//   end_of_producers(), end()         the thread needs no other block any more

// A block by itself.
template <Sm90GemmConfig kConfig>
struct Alone {
  static __device__ void begin() { __syncthreads(); }
  static __device__ int rank() { return 0; }
  template <typename Accumulators>
  static __device__ void reduce(const SharedMemory<kConfig>&, int, Accumulators&) {}
  static __device__ void end_of_producers() {}
  static __device__ void end() {}
};

// Blocks on neighbouring tiles, which multicast what they share. The first copy already arrives at
// the others' barriers, and others write to this block's memory until all have ended.
template <Sm90GemmConfig kConfig>
struct Multicast : Alone<kConfig> {
  static __device__ void begin() { ptx::cluster_sync(); }
  static __device__ void end() { ptx::cluster_sync(); }
};

}  // namespace octofold::sm90
