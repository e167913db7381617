// Kernels run on the host, by a thread for each of a block's: what CUDA has and the headers of
// ptx_on_host do not run. To be included before the kernels.
#pragma once

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#ifndef __shared__  // static, where kernels run as they are
#define __shared__
#endif
struct uint4 {
  unsigned x, y, z, w;
};

#include "kernels/ptx/shared_memory.h"

namespace octofold::test {

// Of the block that runs.
inline std::barrier<>* threads_of_block = nullptr;
inline std::deque<std::barrier<>> warps_of_block;
inline std::atomic<int> any = 0;

}  // namespace octofold::test

inline void __syncthreads() { octofold::test::threads_of_block->arrive_and_wait(); }

inline int __syncthreads_or(int value) {
  octofold::test::any |= value;
  __syncthreads();
  const int result = octofold::test::any;
  __syncthreads();
  octofold::test::any = 0;
  __syncthreads();
  return result;
}

namespace octofold::test {

// Calls body() by each thread of each block, one block after another.
template <typename Body>
void launch(std::int64_t blocks, int threads, Body&& body) {
  std::barrier<> barrier(threads);
  threads_of_block = &barrier;
  warps_of_block.clear();
  for (int warp = 0; warp < threads / 32; ++warp) warps_of_block.emplace_back(32);
  std::vector<std::jthread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      threadIdx.x = static_cast<unsigned>(thread);
      gridDim.x = static_cast<unsigned>(blocks);
      ptx::warp = &warps_of_block[static_cast<std::size_t>(thread / 32)];
      for (std::int64_t block = 0; block < blocks; ++block) {
        blockIdx.x = static_cast<unsigned>(block);
        body();
        __syncthreads();
      }
    });
  }
}

}  // namespace octofold::test
