// Cluster: how the blocks of a cluster work together, and when they may use each other's shared
// memory.
//
//   begin()                           the barriers of this block are initialized
//   rank()                            the block's part of a split K
//   reduce(smem, rank, accumulators)  a tile is summed; split_k.h adds those of the other blocks
//   end_of_producers(), end()         the thread needs no other block any more
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

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
