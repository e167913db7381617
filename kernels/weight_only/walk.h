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

// Tile `index` of a group.
template <WeightOnlyConfig kConfig>
__device__ inline config::WeightOnlyTile tile_of_group(const WeightOnlyParams& params, int group,
                                                       unsigned index) {
  const auto [begin, end] = rows_of_group<kConfig>(params, group);
  auto tile = config::weight_only_tile<unsigned>(kConfig, end - begin,
                                                 static_cast<unsigned>(params.columns), index);
  const bool is_masked = kConfig.work == config::Work::kMaskedRows;
  const long long first = is_masked ? group * params.rows : begin;
  tile.row += first;
  tile.row_end += first;
  tile.group = group;
  return tile;
}

// multiply(tile) for each tile of this block. Blocks share the depth in `splits` parts.
template <WeightOnlyConfig kConfig, typename Multiply>
__device__ inline void for_tiles(const WeightOnlyParams& params, unsigned splits, unsigned memory,
                                 Multiply&& multiply) {
  if constexpr (!kConfig.has_groups()) {
    multiply(config::weight_only_tile<long long>(kConfig, params.rows, params.columns,
                                                 blockIdx.x / splits));
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
      const auto tile = tile_of_group<kConfig>(params, found.part, found.tile);
      if constexpr (kConfig.gathered) {
        store_places<kConfig>(params, tile, memory);
        __syncthreads();
      }
      multiply(tile);
      __syncthreads();  // nobody reads shared memory any longer
    }
  }
}

}  // namespace octofold::weight_only
