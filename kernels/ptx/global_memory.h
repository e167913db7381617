// Loads and stores of global memory, several bytes at a time.
#pragma once

namespace octofold::ptx {

// Loads memory that no kernel writes meanwhile and that is not expected to be read again.
template <int kBytes>
__device__ inline void load_global(const void* address, unsigned (&words)[kBytes / 4]) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(address));
  } else if constexpr (kBytes == 8) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "l"(address));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.b32 %0, [%1];" : "=r"(words[0]) : "l"(address));
  }
}

// 16 bytes of memory that no kernel writes meanwhile, and that this block or its neighbours read
// again. `volatile` keeps it behind the wait for earlier kernels.
__device__ inline void load_cached(const void* address, unsigned (&words)[4]) {
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(address));
}

// 16 bytes, or 8, of memory that this very thread writes too, before or after.
__device__ inline void load_own(const void* address, unsigned (&words)[4]) {
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(address)
               : "memory");
}

__device__ inline void load_own(const void* address, unsigned (&words)[2]) {
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "l"(address)
               : "memory");
}

template <int kBytes>
__device__ inline void store_global(void* address, const unsigned (&words)[kBytes / 4]) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1])
                 : "memory");
  } else {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(words[0]) : "memory");
  }
}

// *address = max(*address, value), whoever else does the same.
__device__ inline void raise_global(unsigned* address, unsigned value) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Access to what others than this GPU's kernels write while a kernel runs: copy engines, other
// GPUs, the host.

// Loads a word. What was written before it, by whoever wrote it, is there for this thread then.
__device__ inline int load_acquire_system(const int* address) {
  int value;
  asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// The same for what this thread has the tensor copy engine (TMA) read from now on.
__device__ inline void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

template <int kNanoseconds>
__device__ inline void sleep_nanoseconds() {
  asm volatile("nanosleep.u32 %0;" ::"n"(kNanoseconds));
}

}  // namespace octofold::ptx
