// The FP8 GEMM for Hopper: D[m, n] = A[m, k] · B[n, k]ᵀ, scaled (+ C) (+ bias), or the codes of a
// gated activation of two such products. A may be cast to FP8 on its way; rows of A, or K, may be
// in groups whose sizes are in device memory.
#pragma once

#include "kernels/sm90/config/gemm.h"
#include "kernels/sm90/pipeline.h"
#include "kernels/sm90/policies.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold {
namespace sm90 {

// The producers: one warp for operands, one for D, two for scales. Where threads copy operands or
// cast them, a second warpgroup has four more warps for operands.
template <Sm90GemmConfig kConfig>
__device__ void produce(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
  using P = Policies<kConfig>;
  const int warp = (static_cast<int>(threadIdx.x) - kConfig.consumer_threads()) / 32;
  if (warp == 2) {
    P::RowScaleLoad::load_scales(params, smem);
  } else if (warp == 3) {
    P::Columns::load_scales(params, smem);
  } else {
    P::Load::run(params, smem, warp);
    if (warp == 1 && threadIdx.x % 32 == 0) P::Store::send(params, smem, P::Cluster::rank());
  }
}

template <Sm90GemmConfig kConfig>
__device__ void consume(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
  using P = Policies<kConfig>;
  const int rank = P::Cluster::rank();
  auto walk = walk_of<kConfig>(params);
  if (!walk.has_tile()) return;
  Consumer<typename P::Warpgroup, typename P::Order> consumer(smem, walk.has_stages());
  typename P::Store output(smem);
  for (; walk.has_tile(); walk.advance()) {
    const Tile tile = walk.tile();
    Accumulators<kConfig> sums;
    consumer.sum_tile(tile, walk.stages_follow(), sums);
    P::Cluster::reduce(smem, rank, sums);
    output.store(params, tile, rank, sums);
  }
  output.finish();
}

}  // namespace sm90

template <config::Sm90GemmConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_per_multiprocessor)
    gemm_kernel(const __grid_constant__ config::Sm90GemmParams params) {
  using P = sm90::Policies<kConfig>;
  static_assert(kConfig.invalid_reason() == nullptr);
  extern __shared__ __align__(config::kSwizzleAlignment) unsigned char memory[];
  const sm90::SharedMemory<kConfig> smem{ptx::opaque(ptx::shared_address(memory))};
  if (threadIdx.x < 32) smem.init_barriers(P::kArrivalsOfStage);
  if (threadIdx.x == kConfig.consumer_threads()) {
    P::Load::prefetch(params);
    P::Store::prefetch(params);
  }
  P::Cluster::begin();
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();

  if (threadIdx.x >= kConfig.consumer_threads()) {
    if (P::Load::kCasts && threadIdx.x >= kConfig.consumer_threads() + 128) {
      P::Load::cast(params, smem);
    } else {
      ptx::shrink_registers<kConfig.producer_registers()>();
      sm90::produce(params, smem);
    }
    __syncwarp();
    P::Cluster::end_of_producers();
  } else {
    ptx::grow_registers<kConfig.consumer_registers()>();
    sm90::consume(params, smem);
  }
  P::Cluster::end();
}

}  // namespace octofold
