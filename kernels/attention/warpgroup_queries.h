// Attention of many queries on Hopper, after FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608):
// bound by products of warpgroups. Two or three warpgroups have 64 rows each, whose queries lie in
// shared memory and whose sums are in registers; one warpgroup more decodes keys and values for all
// of them (warpgroup_tiles.h). A warpgroup has the product with the next keys and the one with
// these values issued together, in turns with the others, and makes weights of scores while the
// tensor core has them (warpgroup_rows.h). Blocks stay, and take rows until all are done.
//
// All numbers are float16, bfloat16 queries too (warpgroup_query_tile.h): it holds every code,
// which takes one instruction a pair of them, and weights better than bfloat16. Where the caller
// allows FP8 scores, keys stay codes and queries become codes, each row with a scale of its own.
//
// H200, BF16 queries, 32 heads on 8 of 128, 16384 causal tokens, TFLOPS, in the order of the work
// (docs/notes/attention.md): a first version 453; codes by way of registers rather than cp.async
// 532; queries and results 16 bytes at a time, the next queries ahead 532 (at 4096 tokens 429 to
// 462); codes of two stages on their way, and maxima that stay where they are 619; a ring of eight
// stages rather than four 650.
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
  const attention::WarpgroupMemory<kConfig> memory{ptx::opaque(ptx::swizzled_shared_memory())};
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
