// Barriers, registers and launch order of a block of threads and its cluster.
#pragma once

#include "kernels/ptx/architecture.h"

namespace octofold::ptx {

// Named barriers (0 is __syncthreads). `threads` counts those that wait and those that only arrive.
__device__ inline void barrier_sync(unsigned barrier, unsigned threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ inline void barrier_arrive(unsigned barrier, unsigned threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ inline unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// True in one thread of a warp whose threads are all here. By elect.sync and not by a comparison of
// lanes, so that the compiler knows that one thread is active: else it loops over active threads
// around every instruction of TMA.
__device__ inline bool elect_one() {
  unsigned elected;
  asm volatile(
      "{\n.reg .pred elected;\nelect.sync _|elected, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, elected;\n}"
      : "=r"(elected));
  return elected != 0;
}

// Each warp of the cluster arrives as often as it waits.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Gives registers of this warpgroup back to the block, or takes freed ones.
template <int kRegisters>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Programmatic dependent launch. wait_for_earlier_kernels returns once the kernels before this one
// in the stream have finished and their memory is visible; let_next_kernel_start lets the one
// behind it begin its set-up where there is room. Before Hopper kernels follow one another.
__device__ inline void wait_for_earlier_kernels() {
  if constexpr (kHasHopper) asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ inline void let_next_kernel_start() {
  if constexpr (kHasHopper) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace octofold::ptx
