// mbarriers: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
// Barriers and data are named by their 32-bit addresses in shared memory.
#pragma once

namespace octofold::ptx {

__device__ inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialized barriers visible to the cluster and to the copy engine.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void mbarrier_arrive_expect_bytes(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives at the barrier with the same offset in block `rank` of the cluster. Without .release:
// written out, that compiles to a fence over the whole GPU, which a loop cannot afford; the default
// semantics are enough for barriers.
__device__ inline void mbarrier_arrive_at_rank(unsigned barrier, unsigned rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// Counts as an arrival of this thread once all its earlier cp.async copies have landed.
__device__ inline void mbarrier_arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Returns once the phase of this parity has completed. Until then a warp may sleep, for 10 ms at a
// time: with no time named it comes back every few hundred clocks, and the polls of producers, who
// wait for most of their lives, were a tenth of a large product's instructions.
__device__ inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 10000000;\n"
      "@!done bra wait;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace octofold::ptx
