// Access to what others than this GPU's kernels write while a kernel runs: copy engines, other
// GPUs, the host.
#pragma once

namespace octofold::ptx {

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
