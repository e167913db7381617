// Loads, stores and asynchronous copies of shared memory, by 32-bit address.
#pragma once

#include "kernels/ptx/architecture.h"

namespace octofold::ptx {

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The beginning of what a launch gives the block besides, a multiple of 128.
__device__ inline unsigned dynamic_shared_memory() {
  extern __shared__ __align__(128) unsigned char of_launch[];
  return shared_address(of_launch);
}

// The same at a multiple of 1024: so the 128-byte swizzle begins anew where it begins.
__device__ inline unsigned swizzled_shared_memory() {
  extern __shared__ __align__(1024) unsigned char swizzled_of_launch[];
  return shared_address(swizzled_of_launch);
}

// A value that the compiler knows nothing about. Addresses made from it are kept in registers,
// not computed anew from the special registers at each use, inside loops too.
__device__ inline unsigned opaque(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The same for a float, which is worked out here, before what comes next.
__device__ inline float opaque(float value) {
  asm volatile("" : "+f"(value));
  return value;
}

__device__ inline float load_shared(unsigned address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}

__device__ inline unsigned load_shared_word(unsigned address) {
  unsigned value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ inline void load_shared_words(unsigned address, unsigned (&words)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

__device__ inline void load_shared_words(unsigned address, unsigned (&words)[2]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(address)
               : "memory");
}

__device__ inline void load_shared_words(unsigned address, unsigned (&words)[1]) {
  words[0] = load_shared_word(address);
}

__device__ inline void store_shared_word(unsigned address, unsigned value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// At a multiple of their bytes.
template <int kWords>
__device__ inline void store_shared_words(unsigned address, const unsigned (&words)[kWords]) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 1) {
    store_shared_word(address, words[0]);
  } else if constexpr (kWords == 4) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(words[0]), "r"(words[1])
                 : "memory");
  }
}

// Two bytes, and zeros.
__device__ inline unsigned load_shared_half(unsigned address) {
  unsigned short value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}

__device__ inline void store_shared_half(unsigned address, unsigned value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<unsigned short>(value))
               : "memory");
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

// Stores to the same offset in the shared memory of block `rank` of the cluster.
__device__ inline void store_at_rank(unsigned address, unsigned rank, unsigned value) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.u32 [remote], %2;\n"
      "}" ::"r"(address),
      "r"(rank), "r"(value)
      : "memory");
}

// The address of the same place in the shared memory of block `rank` of the cluster.
__device__ inline unsigned address_at_rank(unsigned address, unsigned rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// Starts a store to an address_at_rank(), a multiple of 16, which counts 16 bytes on the barrier
// there.
__device__ inline void store_async(unsigned remote, float4 values, unsigned remote_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(remote),
      "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w), "r"(remote_barrier)
      : "memory");
}

__device__ inline float4 load_shared_four(unsigned address) {
  float4 four;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(address));
  return four;
}

__device__ inline float2 load_shared_pair(unsigned address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address));
  return pair;
}

__device__ inline void store_shared(unsigned address, float2 pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(pair.x), "f"(pair.y)
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

// Two of them, each transposed: lane l gives the address of row l % 8 of matrix l / 8 % 2 as it is
// to lie in memory.
__device__ inline void store_matrices_transposed(unsigned row_address, unsigned first,
                                                 unsigned second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row_address),
               "r"(first), "r"(second)
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

// 4, 8 or 16 bytes at once, or as many zeros: before Ampere copies do not go on by themselves.
template <int kBytes>
__device__ inline void copy_now(unsigned destination, const void* source, bool exists) {
  unsigned words[4] = {};
  if constexpr (kBytes == 16) {
    if (exists) {
      asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "l"(source));
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(destination), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (kBytes == 8) {
    if (exists) {
      asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "l"(source));
    }
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(destination), "r"(words[0]), "r"(words[1])
                 : "memory");
  } else {
    if (exists) asm volatile("ld.global.b32 %0, [%1];" : "=r"(words[0]) : "l"(source));
    store_shared_word(destination, words[0]);
  }
}

// Starts a copy of 4, 8 or 16 bytes, at multiples of as many; by way of L1 where neighbours of them
// are copied by other instructions.
template <int kBytes, bool kThroughL1>
__device__ inline void copy_async(unsigned destination, const void* source) {
  static_assert(kBytes == 16 || ((kBytes == 4 || kBytes == 8) && kThroughL1),
                "what goes past L1 is whole units");
  if constexpr (!kHasAmpere) {
    copy_now<kBytes>(destination, source, true);
  } else if constexpr (kThroughL1) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(destination), "l"(source),
                 "n"(kBytes)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source)
                 : "memory");
  }
}

// The same of what exists, else of zeros.
template <int kBytes, bool kThroughL1>
__device__ inline void copy_async(unsigned destination, const void* source, bool exists) {
  static_assert(kBytes == 16 || ((kBytes == 4 || kBytes == 8) && kThroughL1),
                "what goes past L1 is whole units");
  const unsigned flag = exists;
  if constexpr (!kHasAmpere) {
    copy_now<kBytes>(destination, source, exists);
  } else if constexpr (kThroughL1) {
    asm volatile(
        "{\n"
        ".reg .pred absent;\n"
        "setp.eq.u32 absent, %3, 0;\n"
        "cp.async.ca.shared.global [%0], [%1], %2, absent;\n"
        "}" ::"r"(destination),
        "l"(source), "n"(kBytes), "r"(flag)
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred absent;\n"
        "setp.eq.u32 absent, %2, 0;\n"
        "cp.async.cg.shared.global [%0], [%1], 16, absent;\n"
        "}" ::"r"(destination),
        "l"(source), "r"(flag)
        : "memory");
  }
}

// Starts a copy to 16 bytes, at multiples of 16; of the source only so many are read, the others
// become 0.
__device__ inline void copy_unit_async(unsigned destination, const void* source, unsigned bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}

// Groups of this thread's copies so far; returns once all but the latest `kPending` have landed.
__device__ inline void copies_commit() {
  if constexpr (kHasAmpere) asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int kPending>
__device__ inline void copies_wait() {
  if constexpr (kHasAmpere) asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Starts a copy of 4 bytes.
__device__ inline void copy_word_async(unsigned destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source)
               : "memory");
}

// The same of its first `bytes`, and zeros.
__device__ inline void copy_word_async(unsigned destination, const void* source, unsigned bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}

}  // namespace octofold::ptx
