// Loads, stores and asynchronous copies of shared memory, by 32-bit address.
#pragma once

namespace octofold::ptx {

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// A value that the compiler knows nothing about. Addresses made from it are kept in registers,
// not computed anew from the special registers at each use, inside loops too.
__device__ inline unsigned opaque(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ inline float load_shared(unsigned address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}

// Starts a store to the same offset in the shared memory of block `rank` of the cluster, which
// counts 4 bytes on the barrier with the same offset there.
__device__ inline void store_async_at_rank(unsigned address, unsigned rank, unsigned value,
                                           unsigned barrier) {
  asm volatile(
      "{\n"
      ".reg .b32 remote, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mapa.shared::cluster.u32 remote_barrier, %3, %1;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [remote], %2, [remote_barrier];\n"
      "}" ::"r"(address),
      "r"(rank), "r"(value), "r"(barrier)
      : "memory");
}

__device__ inline float2 load_shared_pair(unsigned address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address));
  return pair;
}

__device__ inline void store_shared(unsigned address, uint4 words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

// Four 8×8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(unsigned row_address, unsigned first, unsigned second,
                                      unsigned third, unsigned fourth) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address),
      "r"(first), "r"(second), "r"(third), "r"(fourth)
      : "memory");
}

// Starts a copy of a multiple of 16 bytes, at multiples of 16 bytes, and has them counted on the
// barrier.
__device__ inline void copy_async(unsigned destination, const void* source, unsigned bytes,
                                  unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// Starts a copy of 4 bytes.
__device__ inline void copy_word_async(unsigned destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source)
               : "memory");
}

}  // namespace octofold::ptx
