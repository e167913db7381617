// Products of many 16-bit rows and FP8 weights, out[rows, columns] = x · Wᵀ or x · W, as
// kernel.h has them: a tile of out for each block, a ring of stages in shared memory. Here
// tensor cores have to be busy all the time, so nothing that they wait for is loaded or decoded
// right before it (decode_ahead.h), and sums are the only ones there are (sum_units.h): a warp has
// 128 of its 255 registers for them.
//
// H200 as 8.0, 4096 rows: 0.46 to 0.58 of mma.sync alone, where 0.8 was wanted; 1.1 to 1.27 times
// as fast as kernel.h. Tried and lost: weights decoded once into shared memory for all warps,
// and parts of the depth for fewer rows (docs/notes/weight-only.md).
//
// A step is 64 of the depth, two halves. The barrier is between these: behind it the next stage has
// landed, of which the second half loads operands, and nobody reads the one before any longer.
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/weight_only/decode_ahead.h"
#include "kernels/weight_only/load.h"
#include "kernels/weight_only/store.h"
#include "kernels/weight_only/walk.h"

namespace octofold {
namespace weight_only {

// NaN among the weights of a column makes all of its sums NaN, whatever x is. Products know of one
// somewhere; here columns are searched for it, and the unit of its sums becomes NaN.
template <WeightOnlyConfig kConfig>
__device__ inline void find_nan(const WeightOnlyParams& params, config::WeightOnlyTile tile,
                                unsigned units) {
  const long long along = kConfig.transposed ? params.w_stride : 1;
  const long long across = kConfig.transposed ? 1 : params.w_stride;
  for (int i = static_cast<int>(threadIdx.x); i < kConfig.tile_columns; i += kConfig.threads()) {
    if (tile.column + i >= params.columns) break;
    const unsigned char* const codes = weights_of(params, tile.group) + (tile.column + i) * across;
    bool is_nan = false;
    for (long long k = 0; k < params.depth; ++k) {
      is_nan |= (codes[k * along] & config::kFp8Nan) == config::kFp8Nan;
    }
    if (is_nan) ptx::store_shared_word(units + 4 * i, numeric::kNanBits);
  }
}

template <WeightOnlyConfig kConfig>
__device__ inline void multiply_many_rows(const WeightOnlyParams& params,
                                          config::WeightOnlyTile tile, unsigned memory) {
  const int steps = static_cast<int>(config::ceil_divide(params.depth, kConfig.step_depth()));
  Copies<kConfig> copies(params, tile, 0);
  AheadProduct<kConfig> product;

  constexpr int kAhead = kConfig.stages - 1;
  const auto stage_of = [&](int slot) {
    return Stage<kConfig>{memory + slot * kConfig.stage_bytes()};
  };
  // Each step has a group of copies, if without any.
#pragma unroll 1
  for (int ahead = 0; ahead < kAhead; ++ahead) {
    if (ahead < steps) copies.begin(stage_of(ahead), ahead);
    ptx::copies_commit();
  }
  ptx::copies_wait<kAhead - 1>();
  __syncthreads();
  product.load_first(stage_of(0));
  int slot = 0, free_slot = kAhead;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const Stage<kConfig> stage = stage_of(slot);
    if constexpr (kConfig.w_blocks) {
      if (step % (kScaleBlock / kConfig.step_depth()) == 0) product.change_units(stage);
    }
    product.template multiply<0>(stage, stage, []<int>() {});
    ptx::copies_wait<kAhead - 2>();
    __syncthreads();
    const Stage<kConfig> freed = stage_of(free_slot);
    const int ahead = step + kAhead;
    slot = slot + 1 == kConfig.stages ? 0 : slot + 1;
    free_slot = free_slot + 1 == kConfig.stages ? 0 : free_slot + 1;
    // Behind the last step: operands that nobody uses.
    if (ahead < steps && copies.is_whole(ahead)) {
      product.template multiply<1>(stage, stage_of(slot), [&]<int kRow>() {
        constexpr int kCount = Copies<kConfig>::kCount, kRows = kConfig.row_tiles();
#pragma unroll
        for (int i = kRow * kCount / kRows; i < (kRow + 1) * kCount / kRows; ++i) {
          copies.begin_part(freed, ahead, i);
        }
      });
    } else {
      if (ahead < steps) copies.begin(freed, ahead);
      product.template multiply<1>(stage, stage_of(slot), []<int>() {});
    }
    ptx::copies_commit();
  }
  ptx::copies_wait<0>();
  const unsigned units = memory + kConfig.units_offset();
  copies.store_units(units);
  // Behind it nobody reads a stage any longer.
  if (__syncthreads_or(product.met_nan())) {
    find_nan<kConfig>(params, tile, units);
    __syncthreads();
  }
  product.store(memory, units);
  __syncthreads();
  const Finish<kConfig> finish(params, AheadProduct<kConfig>::kUnit, tile.group);
  finish.store(memory, tile);
}

}  // namespace weight_only

template <config::WeightOnlyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    weight_only_many_rows_kernel(const __grid_constant__ config::WeightOnlyParams params) {
  static_assert(kConfig.invalid_reason() == nullptr && kConfig.ahead);
  using namespace weight_only;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const unsigned memory = ptx::dynamic_shared_memory();
  for_tiles<kConfig>(params, 1, memory, [&](config::WeightOnlyTile tile) {
    multiply_many_rows<kConfig>(params, tile, memory);
  });
}

}  // namespace octofold
