// Products of numbers and FP8 weights, on GPUs with FP8 units and without: out[rows, columns] = x ·
// Wᵀ, or x · W. Weights come as codes into a ring in shared memory, many bytes ahead, and become
// x's type in registers, right before they are multiplied.
//
// A block has one tile of out and all of the depth, or a part of it where tiles are too few;
// another kernel then adds the parts. It takes the depth in steps of 128 for each of 1 to 8 groups
// of warps, with one barrier a step. With few rows the warps share the depth, so that blocks are
// many and small; with many rows they share the tile. Each warp, then the block, then the blocks
// add in a fixed order.
//
// H200: one row of 16384² in FP16 was predicted to take 62 to 66 µs and takes 66. Steps that are
// whole have code without checks: predicted 20 %, came 1 to 6. Blocks that share the depth: 9 to 27
// % at 64 rows. Tried and lost: scales of blocks read where they are needed (a latency of some 600
// clocks in a step of 1200); a ring of registers, which is one load in flight; tiles of 64 × 64 to
// a warp by blocks, which spill (docs/notes/weight-only.md).
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/weight_only/load.h"
#include "kernels/weight_only/products.h"
#include "kernels/weight_only/store.h"
#include "kernels/weight_only/walk.h"

namespace octofold {
namespace weight_only {

template <WeightOnlyConfig kConfig, bool kOnTensorCores = kConfig.on_tensor_cores()>
struct ProductOf {
  using Type = TensorProduct<kConfig>;
};
template <WeightOnlyConfig kConfig>
struct ProductOf<kConfig, false> {
  using Type = FloatProduct<kConfig>;
};

// A tile, of a part of the depth's steps.
template <WeightOnlyConfig kConfig>
__device__ inline void multiply_tile(const WeightOnlyParams& params, config::WeightOnlyTile tile,
                                     unsigned split, unsigned splits, unsigned memory) {
  using Product = typename ProductOf<kConfig>::Type;
  const int all_steps = static_cast<int>(config::ceil_divide(params.depth, kConfig.step_depth()));
  const int first_step = static_cast<int>(static_cast<long long>(all_steps) * split / splits);
  const int steps = static_cast<int>(static_cast<long long>(all_steps) * (split + 1) / splits);
  Copies<kConfig> copies(params, tile, first_step);
  Product product;

  constexpr int kAhead = kConfig.stages - 1;
  const auto stage_of = [&](int slot) {
    return Stage<kConfig>{memory + slot * kConfig.stage_bytes()};
  };
  // Each step has a group of copies, if without any.
#pragma unroll 1
  for (int ahead = 0; ahead < kAhead; ++ahead) {
    if (first_step + ahead < steps) copies.begin(stage_of(ahead), first_step + ahead);
    ptx::copies_commit();
  }
  int slot = 0, next_slot = kAhead;
  const int group = Part<kConfig>::of_warp().group;
#pragma unroll 1
  for (int step = first_step; step < steps; ++step) {
    ptx::copies_wait<kAhead - 1>();
    __syncthreads();  // all see the step, and all are done with the one before
    if (step + kAhead < steps) copies.begin(stage_of(next_slot), step + kAhead);
    ptx::copies_commit();
    const int block = step * kConfig.warps_depth + group;
    if (static_cast<long long>(block) * kScaleBlock < params.depth) product.add(stage_of(slot));
    slot = slot + 1 == kConfig.stages ? 0 : slot + 1;
    next_slot = next_slot + 1 == kConfig.stages ? 0 : next_slot + 1;
  }
  ptx::copies_wait<0>();
  __syncthreads();  // nobody reads a stage any longer
  product.store(memory);
  __syncthreads();
  const Finish<kConfig> finish(params, Product::kUnit, tile.group);
  if constexpr (kConfig.split) {
    finish.store_sums(memory, tile, split);
  } else {
    finish.store(memory, tile);
  }
}

}  // namespace weight_only

template <config::WeightOnlyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.has_groups() ? 1 : 0)
    weight_only_kernel(const __grid_constant__ config::WeightOnlyParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  using namespace weight_only;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const unsigned memory = ptx::dynamic_shared_memory();
  const unsigned splits = kConfig.split ? params.splits : 1, split = blockIdx.x % splits;
  for_tiles<kConfig>(params, splits, memory, [&](config::WeightOnlyTile tile) {
    multiply_tile<kConfig>(params, tile, split, splits, memory);
  });
}

// Sums of parts of the depth, that blocks of weight_only_kernel have left in memory, to out: four
// columns of a row to a thread, in the order of the depth.
template <config::WeightOnlyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    combine_weight_only_kernel(const __grid_constant__ config::WeightOnlyParams params) {
  static_assert(kConfig == kConfig.of_combination());
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const long long fours = config::ceil_divide(params.columns, 4);
  const long long index = static_cast<long long>(blockIdx.x) * kConfig.threads() + threadIdx.x;
  if (index >= params.rows * fours) return;
  using Product = typename weight_only::ProductOf<kConfig>::Type;
  weight_only::Finish<kConfig>(params, Product::kUnit).combine(index / fours, index % fours * 4);
}

}  // namespace octofold
