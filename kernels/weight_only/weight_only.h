// Products of x and FP8 weights, whatever has FP8 units or not: weights come as codes into a ring
// in shared memory, many bytes ahead, and become x's type in registers, right before they are
// multiplied. Each warp, and then the block, adds in a fixed order.
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/weight_only/copy.h"
#include "kernels/weight_only/finish.h"
#include "kernels/weight_only/products.h"

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

}  // namespace weight_only

template <config::WeightOnlyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    weight_only_kernel(const __grid_constant__ config::WeightOnlyParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  using namespace weight_only;
  using Product = typename ProductOf<kConfig>::Type;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const unsigned memory = ptx::dynamic_shared_memory();
  const unsigned splits = kConfig.split ? params.splits : 1, split = blockIdx.x % splits;
  const auto tile =
      config::weight_only_tile(kConfig, params.rows, params.columns, blockIdx.x / splits);
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
  const Finish<kConfig> finish(params, Product::kUnit);
  if constexpr (kConfig.split) {
    finish.store_sums(memory, tile, split);
  } else {
    finish.store(memory, tile);
  }
}

}  // namespace octofold
