// Kernels run on the host, by a thread for each of a block's: what CUDA has and the headers of
// ptx_on_host do not run. To be included before the kernels.
#pragma once

#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <stdexcept>
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

#include "kernels/ptx/control.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::test {

// Of the block that this thread is of.
inline thread_local std::barrier<>* threads_of_block = nullptr;
inline std::array<std::atomic<int>, ptx::kMostBlocks> any;

}  // namespace octofold::test

inline void __syncthreads() { octofold::test::threads_of_block->arrive_and_wait(); }

inline int __syncthreads_or(int value) {
  std::atomic<int>& any = octofold::test::any[octofold::ptx::rank];
  any |= value;
  __syncthreads();
  const int result = any;
  __syncthreads();
  any = 0;
  __syncthreads();
  return result;
}

namespace octofold::test {

// Calls body() by each thread of each block, one cluster after another.
template <typename Body>
void launch(std::int64_t blocks, int threads, Body&& body, int cluster = 1) {
  if (cluster > static_cast<int>(ptx::kMostBlocks)) throw std::invalid_argument("cluster");
  std::barrier<> of_cluster(cluster * threads);
  std::barrier all(cluster * threads, []() noexcept { ptx::end_blocks(); });
  std::deque<std::barrier<>> of_blocks, of_warps;
  for (int block = 0; block < cluster; ++block) of_blocks.emplace_back(threads);
  for (int warp = 0; warp < cluster * threads / 32; ++warp) of_warps.emplace_back(32);
  std::vector<std::jthread> running;
  for (int i = 0; i < cluster * threads; ++i) {
    running.emplace_back([&, i] {
      threadIdx.x = static_cast<unsigned>(i % threads);
      gridDim.x = static_cast<unsigned>(blocks);
      ptx::rank = static_cast<std::size_t>(i / threads);
      threads_of_block = &of_blocks[ptx::rank];
      ptx::cluster = &of_cluster;
      ptx::warp = &of_warps[static_cast<std::size_t>(i / 32)];
      for (std::int64_t first = 0; first < blocks; first += cluster) {
        blockIdx.x = static_cast<unsigned>(first + i / threads);
        body();
        all.arrive_and_wait();
      }
    });
  }
}

}  // namespace octofold::test
