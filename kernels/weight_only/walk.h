// The tiles of a block: one of a dense product; of groups of rows those that fall to it, whose
// number is in device memory.
#pragma once

#include "kernels/numeric/find_tile.h"
#include "kernels/shared/group_bounds.h"
#include "kernels/weight_only/gathered.h"

namespace octofold::weight_only {

// Rows of a group, whatever the numbers are.
template <WeightOnlyConfig kConfig>
__device__ inline config::GroupBounds rows_of_group(const WeightOnlyParams& params, int group) {
  const auto rows = static_cast<int>(params.rows);
  if constexpr (kConfig.work == config::Work::kMaskedRows) {
    return {0, config::clamped(params.groups.numbers[group], 0, rows)};
  } else {
    const int begin = config::clamped(params.groups.numbers[group], 0, rows);
    return {begin, config::clamped(params.groups.numbers[group + 1], begin, rows)};
  }
}

// The product of one group, as a dense one.
template <WeightOnlyConfig kConfig>
__device__ inline WeightOnlyParams product_of_group(const WeightOnlyParams& all, int group) {
  const config::GroupBounds bounds = rows_of_group<kConfig>(all, group);
  long long first = bounds.begin;
  if constexpr (kConfig.work == config::Work::kMaskedRows) first = group * all.rows;
  WeightOnlyParams one = all;
  one.rows = bounds.end - bounds.begin;
  one.w += group * all.groups.w_stride;
  one.w_scale.data += group * all.groups.scale_stride;
  one.out = static_cast<char*>(all.out) + first * all.out_stride * size_of(kConfig.out);
  if constexpr (kConfig.gathered) {
    one.groups.sources += first;
  } else {
    one.x = static_cast<const char*>(all.x) + first * all.x_stride;
  }
  if (all.bias != nullptr) {
    const int size = all.bias_is_float32 ? 4 : size_of(kConfig.out);
    one.bias = static_cast<const char*>(all.bias) + group * all.columns * size;
  }
  return one;
}

// multiply(params, tile) for each tile of this block, of a dense product or of one group's. Blocks
// share the depth in `splits` parts.
template <WeightOnlyConfig kConfig, typename Multiply>
__device__ inline void for_tiles(const WeightOnlyParams& params, unsigned splits, unsigned memory,
                                 Multiply&& multiply) {
  if constexpr (!kConfig.has_groups()) {
    const auto tile =
        config::weight_only_tile(kConfig, params.rows, params.columns, blockIdx.x / splits);
    multiply(params, tile);
  } else {
    const auto columns = static_cast<unsigned>(
        config::ceil_divide(params.columns, static_cast<long long>(kConfig.tile_columns)));
    const auto tiles_of = [&](int group) {
      const auto [begin, end] = rows_of_group<kConfig>(params, group);
      return static_cast<unsigned>(config::ceil_divide(end - begin, kConfig.tile_rows)) * columns;
    };
#pragma unroll 1
    for (unsigned index = blockIdx.x;; index += gridDim.x) {
      constexpr int kGroupsOfLane = 4;
      const auto found = numeric::find_tile<kGroupsOfLane>(params.groups.count, index, tiles_of);
      if (!found.exists) return;
      const WeightOnlyParams one = product_of_group<kConfig>(params, found.part);
      const auto tile = config::weight_only_tile(kConfig, one.rows, one.columns, found.tile);
      if constexpr (kConfig.gathered) {
        store_places<kConfig>(one, tile, memory);
        __syncthreads();
      }
      multiply(one, tile);
      __syncthreads();  // nobody reads shared memory any longer
    }
  }
}

}  // namespace octofold::weight_only
