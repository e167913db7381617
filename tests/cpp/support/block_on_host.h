// Kernels run on the host, by a fiber for each thread of a block: what CUDA has and the headers of
// ptx_on_host do not run. To be included before the kernels.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <stdexcept>
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

inline std::array<std::atomic<int>, ptx::kMostBlocks> any;  // of each block

}  // namespace octofold::test

inline void __syncthreads() { octofold::ptx::self().block->arrive_and_wait(); }

inline int __syncthreads_or(int value) {
  std::atomic<int>& any = octofold::test::any[octofold::ptx::self().rank];
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
  Barrier of_cluster(cluster * threads), all(cluster * threads, ptx::end_blocks);
  std::deque<Barrier> of_blocks, of_warps;
  for (int block = 0; block < cluster; ++block) of_blocks.emplace_back(threads);
  for (int warp = 0; warp < cluster * threads / 32; ++warp) of_warps.emplace_back(32);
  run_fibers(cluster * threads, [&](int i) {
    ptx::Thread thread{.index = {static_cast<unsigned>(i % threads)},
                       .grid = {static_cast<unsigned>(blocks)},
                       .rank = static_cast<std::size_t>(i / threads)};
    thread.warp = &of_warps[static_cast<std::size_t>(i / 32)];
    thread.block = &of_blocks[thread.rank];
    thread.cluster = &of_cluster;
    set_fiber_local(&thread);
    for (std::int64_t first = 0; first < blocks; first += cluster) {
      thread.block_index.x = static_cast<unsigned>(first + i / threads);
      body();
      all.arrive_and_wait();
    }
  });
}

}  // namespace octofold::test
