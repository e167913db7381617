// Products of 16-bit numbers and FP8 weights for Hopper: out[rows, columns] = x · Wᵀ, or x · W, by
// wgmma. Weights are its first operand, decoded in registers, and x is the second, in shared memory
// as it came. So codes are read once for as many rows as a tile has, and few rows do not waste the
// instruction's 64.
//
// A producer warp keeps a ring of stages of 128 of the depth filled by TMA, another one copies
// scales. One to three warpgroups multiply, each with columns of its own. Where tiles are too few,
// groups of warpgroups share the depth of one, and blocks of a cluster do, which
// add their sums through each other's shared memory (kernels/sm90/split_k.h).
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/sm90/split_k.h"
#include "kernels/weight_only_sm90/load.h"
#include "kernels/weight_only_sm90/products.h"
#include "kernels/weight_only_sm90/store.h"

namespace octofold {
namespace weight_only_sm90 {

// Adds up the sums of groups of warpgroups that share the depth of a tile; true if the thread has
// those of all groups now. The first group adds what the others have, in their order, each thread
// the sums of the thread that has the same places. A block has one tile then, so that the ring is
// free for them.
template <Sm90WeightOnlyConfig kConfig>
__device__ bool add_groups(const SharedMemory<kConfig>& smem, int group, Sums<kConfig>& sums) {
  constexpr unsigned kBarrier = 1 + kConfig.warpgroups;  // behind those of stores
  constexpr int kVectors = kConfig.tile_rows / 8;
  const int thread = static_cast<int>(threadIdx.x) % kConfig.group_threads();
  const auto place = [&](int vector, int sub_tile) {
    return ((sub_tile * kVectors + vector) * kConfig.group_threads() + thread) * 16;
  };
  const auto for_vectors = [&](auto&& use) {
#pragma unroll
    for (int i = 0; i < kVectors * kConfig.sub_tiles(); ++i) {
      use(place(i % kVectors, i / kVectors), &sums[i / kVectors][i % kVectors * 4]);
    }
  };
  ptx::barrier_sync(kBarrier, kConfig.consumer_threads());  // nobody reads a stage any longer
  if (group > 0) {
    for_vectors([&](int at, const float* four) {
      const unsigned words[4] = {__float_as_uint(four[0]), __float_as_uint(four[1]),
                                 __float_as_uint(four[2]), __float_as_uint(four[3])};
      ptx::store_shared_words(smem.group_sums(group) + at, words);
    });
    ptx::barrier_sync(kBarrier, kConfig.consumer_threads());
    return false;
  }
  ptx::barrier_sync(kBarrier, kConfig.consumer_threads());
#pragma unroll
  for (int other = 1; other < kConfig.depth_groups; ++other) {
    for_vectors([&](int at, float* four) {
      const float4 more = ptx::load_shared_four(smem.group_sums(other) + at);
      four[0] += more.x, four[1] += more.y, four[2] += more.z, four[3] += more.w;
    });
  }
  return true;
}

template <Sm90WeightOnlyConfig kConfig>
__device__ void produce(const Sm90WeightOnlyParams& params, const SharedMemory<kConfig>& smem) {
  const int thread = static_cast<int>(threadIdx.x) - kConfig.consumer_threads();
  // Lanes of groups find tiles together: the shuffle tells the compiler that all are here.
  const int warp = kConfig.has_groups() ? __shfl_sync(0xFFFFFFFFu, thread / 32, 0) : thread / 32;
  if (warp == 0 && (kConfig.has_groups() || thread == 0)) load_operands(params, smem);
  if (kConfig.scales() > 0 && warp == 1) load_scales(params, smem);
}

template <Sm90WeightOnlyConfig kConfig>
__device__ void consume(const Sm90WeightOnlyParams& params, const SharedMemory<kConfig>& smem) {
  constexpr int kGroups = kConfig.depth_groups;
  // The shuffle tells the compiler that all lanes agree: places in the ring stay in uniform
  // registers.
  const int group =
      kGroups == 1
          ? 0
          : __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kConfig.group_threads(), 0);
  const Store<kConfig> output(params, smem);
  Products<kConfig> products(smem, group);
  const int rank = static_cast<int>(blockIdx.x) % kConfig.split_k;
  for (Walk<kConfig> walk(params); walk.has_tile(); walk.advance()) {
    Sums<kConfig> sums;
    const int depth = walk.tile().k_end - walk.tile().k_begin;
    products.sum_tile((config::ceil_divide(depth, kScaleBlock) - group + kGroups - 1) / kGroups,
                      sums);
    const bool has_all = kGroups == 1 || add_groups(smem, group, sums);
    if constexpr (kConfig.split_k > 1) {
      ptx::cluster_sync();  // all are done with their rings, where slices arrive
      if (has_all) {
        sm90::add_slices<kConfig.slices()>(smem.slices(), smem.slices_full(), rank, sums);
      }
    }
    if (has_all) output.store(walk.tile(), rank, sums);
  }
}

}  // namespace weight_only_sm90

template <config::Sm90WeightOnlyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_per_multiprocessor)
    weight_only_sm90_kernel(const __grid_constant__ config::Sm90WeightOnlyParams params) {
  using namespace weight_only_sm90;
  static_assert(kConfig.invalid_reason() == nullptr);
  const unsigned memory = ptx::dynamic_shared_memory();
  const SharedMemory<kConfig> smem{ptx::opaque((memory + 1023) / 1024 * 1024)};
  if (threadIdx.x < 32) smem.init_barriers(kProducers<kConfig>);
  if (threadIdx.x == kConfig.consumer_threads()) {
    ptx::prefetch_tensor_map(&params.w_map);
    ptx::prefetch_tensor_map(&params.x_map);
  }
  __syncthreads();
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  if (threadIdx.x >= kConfig.consumer_threads()) {
    ptx::shrink_registers<kConfig.producer_registers()>();
    produce(params, smem);
    __syncwarp();
    if constexpr (kConfig.split_k > 1) ptx::cluster_sync();
  } else {
    ptx::grow_registers<kConfig.consumer_registers()>();
    consume(params, smem);
  }
}

}  // namespace octofold
