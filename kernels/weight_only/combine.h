// Sums of parts of the depth, that blocks of weight_only_kernel have left in memory, to out: four
// columns of a row to a thread, in the order of the depth.
#pragma once

#include "kernels/weight_only/kernel.h"

namespace octofold {

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
