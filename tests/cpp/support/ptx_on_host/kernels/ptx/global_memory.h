// Memory is the host's.
#pragma once

#include <atomic>
#include <cstring>

#include "support/fibers.h"

namespace octofold::ptx {

template <int kBytes>
void load_global(const void* address, unsigned (&words)[kBytes / 4]) {
  std::memcpy(words, address, kBytes);
}
inline void load_cached(const void* address, unsigned (&words)[4]) {
  std::memcpy(words, address, 16);
}
inline void load_own(const void* address, unsigned (&words)[4]) { std::memcpy(words, address, 16); }
inline void load_own(const void* address, unsigned (&words)[2]) { std::memcpy(words, address, 8); }
template <int kBytes>
void store_global(void* address, const unsigned (&words)[kBytes / 4]) {
  std::memcpy(address, words, kBytes);
}

inline void raise_global(unsigned* address, unsigned value) {
  std::atomic_ref<unsigned> held(*address);
  for (unsigned found = held; found < value && !held.compare_exchange_weak(found, value);) {
  }
}

// Threads of the host are copy engines.
inline int load_acquire_system(const int* address) {
  return std::atomic_ref(const_cast<int&>(*address)).load(std::memory_order_acquire);
}
inline void fence_proxy_async_global() {}
template <int kNanoseconds>
inline void sleep_nanoseconds() {
  test::give_way();
}

}  // namespace octofold::ptx
