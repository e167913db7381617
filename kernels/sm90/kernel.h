// The FP8 GEMM for Hopper: D[m, n] = A[m, k] · B[n, k]ᵀ, scaled (+ C) (+ bias), or the codes of a
// gated activation of two such products. A may be cast to FP8 on its way; rows of A, or K, may be
// in groups whose sizes are in device memory.
// As many blocks of threads as run at one time stay for the whole product and walk over tiles of D.
// Producer warps keep a ring of stages of 128 of K filled: operands by TMA, scales by small
// asynchronous copies. One to three consumer warpgroups multiply, and promote the partial sums of
// each stage in FP32. A finished tile goes to shared memory, from where a producer warp sends it
// out: the consumers neither wait for it nor for the next tile's first stages. What differs between
// products are policies (policies.h). docs/kernels.md says in which order to read the files.
// What each step of the design is worth, and what was tried and lost: docs/kernels/gemm-tilings.md.
#pragma once

#include "kernels/sm90/config/checks.h"
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
    if (warp == 1 && ptx::elect_one()) P::Store::send(params, smem, P::Cluster::rank());
  }
}

template <Sm90GemmConfig kConfig>
__device__ void consume(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
  using P = Policies<kConfig>;
  const int rank = P::Cluster::rank();
  typename P::Tiles walk(params, smem);
  if (!walk.has_tile()) return;
  // Before the consumer: behind it, whose waiting ahead came between, a register spilled in slabs.
  typename P::Store output(smem);
  Consumer<typename P::Warpgroup, typename P::Order> consumer(smem, walk.has_stages());
  while (walk.has_tile()) {
    const Tile tile = walk.tile();
    if (kConfig.wait_ahead) walk.advance();  // others lack registers for a walk behind the tile
    Accumulators<kConfig> sums;
    consumer.sum_tile(tile, walk.has_stages(), sums);
    P::Cluster::reduce(smem, rank, sums);
    output.store(params, tile, rank, sums);
    if (!kConfig.wait_ahead) walk.advance();
  }
  output.finish();
}

}  // namespace sm90

template <config::Sm90GemmConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_per_multiprocessor)
    gemm_kernel(const __grid_constant__ config::Sm90GemmParams params) {
  using P = sm90::Policies<kConfig>;
  static_assert(kConfig.invalid_reason() == nullptr);
  const sm90::SharedMemory<kConfig> smem{ptx::opaque(ptx::swizzled_shared_memory())};
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
