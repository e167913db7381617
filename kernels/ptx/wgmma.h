// Asynchronous matrix products of a warpgroup: PTX ISA, "Asynchronous Warpgroup Level Matrix
// Instructions". The products themselves are generated: wgmma_fp8.h, wgmma_half.h.
#pragma once

namespace octofold::ptx {

// Orders earlier accesses to the accumulator registers before the next wgmma.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Returns once all but the latest `kPending` committed groups have finished.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Behind the wait for their products: nothing of these sums is read before, or copied, which the
// compiler does otherwise where branches follow.
template <int kCount>
__device__ inline void wgmma_pin(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// The descriptor with this low word ("Matrix Descriptor Format"): rows of 128 bytes under the
// 128-byte swizzle, eight of them to an atom of 1024 bytes. Bits 32-45 are the distance between
// atoms in units of 16 bytes, 62-63 the swizzle (1: 128 bytes). The low word is an operand's
// address in units of 16 bytes; what is added to it is summed in 32 bits: no carry can reach the
// high word, and the compiler need not prove it.
__device__ inline unsigned long long descriptor_of(unsigned low) {
  constexpr unsigned kSwizzle128 = 1u << 30;
  constexpr unsigned kAtomDistance = 1024 >> 4;
  unsigned long long descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "r"(kSwizzle128 | kAtomDistance));
  return descriptor;
}

// The descriptor of a K-major operand of 8-bit elements, `k` values of K in (a multiple of 32).
__device__ inline unsigned long long k_major_descriptor(unsigned address, int k) {
  return descriptor_of(((address & 0x3FFFF) >> 4) + (k >> 4));
}

// Describes an N-major operand of 16-bit elements: 64 of N in a row of 128 bytes, rows of K behind
// one another, the next 64 of N `distance` bytes further (bits 16-29, in units of 16 bytes).
__device__ inline unsigned long long n_major_descriptor(unsigned address, int distance) {
  return descriptor_of(((address & 0x3FFFF) >> 4) | static_cast<unsigned>(distance >> 4) << 16);
}

}  // namespace octofold::ptx
