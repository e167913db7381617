// Attention of many queries on Hopper, after FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608):
// products of warpgroups.
#pragma once

#include "kernels/attention/config/warpgroup_queries.h"
#include "kernels/attention/warpgroup_memory.h"
#include "kernels/attention/warpgroup_rows.h"
#include "kernels/attention/warpgroup_tiles.h"

namespace octofold {
template <config::WarpgroupQueriesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    warpgroup_queries_kernel(const __grid_constant__ config::AttentionParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  extern __shared__ __align__(1024) unsigned char of_launch[];
  const attention::WarpgroupMemory<kConfig> memory{ptx::opaque(ptx::shared_address(of_launch))};
  if (threadIdx.x == 0) memory.init_barriers();
  __syncthreads();
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  if (threadIdx.x >= kConfig.threads() - 128) {
    ptx::shrink_registers<kConfig.producer_registers()>();
    attention::WarpgroupTiles<kConfig, attention::WarpgroupMemory<kConfig>>(params, memory).run();
  } else {
    ptx::grow_registers<kConfig.consumer_registers()>();
    attention::WarpgroupRows<kConfig>(params, memory).run();
  }
}

}  // namespace octofold
