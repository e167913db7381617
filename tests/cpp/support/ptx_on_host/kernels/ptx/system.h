// Threads of the host for copy engines.
#pragma once

#include <atomic>

#include "support/fibers.h"

namespace octofold::ptx {

inline int load_acquire_system(const int* address) {
  return std::atomic_ref(const_cast<int&>(*address)).load(std::memory_order_acquire);
}
inline void fence_proxy_async_global() {}
template <int kNanoseconds>
inline void sleep_nanoseconds() {
  test::give_way();
}

}  // namespace octofold::ptx
