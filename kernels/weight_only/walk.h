// The tiles of a block: one of a dense product; of groups of rows, whose numbers are in device
// memory, those that fall to it. Sizes may be beyond what int counts, so that a tile is no
// config::Tile. And what a tile's group has: rows, weights with their scales, and the terms that
// finish a sum, which are scales that are constant along the depth, and the bias.
#pragma once

#include "kernels/numeric/elements.h"
#include "kernels/numeric/lanes.h"
#include "kernels/numeric/vector.h"
#include "kernels/shared/group_bounds.h"
#include "kernels/weight_only/config/config.h"
#include "kernels/weight_only/gathered.h"

namespace octofold::weight_only {

// The weights of a tile's group, and their scale.
__device__ inline const unsigned char* weights_of(const config::WeightOnlyParams& params,
                                                  int group) {
  return params.w + group * params.groups.w_stride;
}
template <typename Params>
__device__ inline config::WeightOnlyScale scale_of(const Params& params, int group) {
  config::WeightOnlyScale scale = params.w_scale;
  scale.data += group * params.groups.scale_stride;
  return scale;
}

// The end of the rows of a tile's group. For a dense product that is a parameter, which takes no
// register.
template <config::WeightOnlyConfig kConfig>
__device__ inline long long row_end(const config::WeightOnlyParams& params,
                                    const config::WeightOnlyTile& tile) {
  return kConfig.has_groups() ? tile.row_end : params.rows;
}

// The scale of row or column `index` of out; 1 if there is none.
__device__ inline float factor_of(const config::WeightOnlyScale& scale, long long index) {
  return scale.data == nullptr ? 1 : scale.data[(index >> scale.shift) * scale.stride];
}

// The bias of a column, if there is one. `params`: those of a kernel, with `bias` and whether it is
// float32, else kOut.
template <DType kOut, typename Params>
__device__ float bias_of(const Params& params, long long column) {
  if (params.bias_is_float32) return static_cast<const float*>(params.bias)[column];
  const unsigned bits = static_cast<const numeric::Storage<kOut>*>(params.bias)[column];
  float value[1];
  numeric::widen<kOut>(&bits, value);
  return value[0];
}

// Rows of a group among all of x and out, whatever the numbers are. `params`: rows, columns and
// groups of a kernel.
template <auto kConfig, typename Params>
__device__ inline config::GroupBounds rows_of_group(const Params& params, int group) {
  const auto rows = static_cast<int>(params.rows);
  if constexpr (kConfig.work == config::Work::kMaskedRows) {
    return {0, config::clamped(params.groups.numbers[group], 0, rows)};
  } else {
    const int begin = config::clamped(params.groups.numbers[group], 0, rows);
    return {begin, config::clamped(params.groups.numbers[group + 1], begin, rows)};
  }
}

// Tile `index` of all groups, by all lanes of a warp; false: there is none.
template <auto kConfig, typename Params>
__device__ inline bool find_group_tile(const Params& params, unsigned index,
                                       config::WeightOnlyTile& tile) {
  constexpr int kGroupsOfLane = 4;
  const auto columns = static_cast<unsigned>(params.columns);
  const unsigned column_tiles =
      config::ceil_divide(columns, static_cast<unsigned>(kConfig.tile_columns));
  const auto [group, own, exists] =
      numeric::find_tile<kGroupsOfLane>(params.groups.count, index, [&](int asked) {
        const auto [begin, end] = rows_of_group<kConfig>(params, asked);
        return static_cast<unsigned>(config::ceil_divide(end - begin, kConfig.tile_rows)) *
               column_tiles;
      });
  if (!exists) return false;
  const auto [begin, end] = rows_of_group<kConfig>(params, group);
  tile = config::weight_only_tile<unsigned>(kConfig, end - begin, columns, own);
  const bool is_masked = kConfig.work == config::Work::kMaskedRows;
  const long long first = is_masked ? group * static_cast<long long>(params.rows) : begin;
  tile.row += first;
  tile.row_end += first;
  tile.group = group;
  return true;
}

// multiply(tile) for each tile of this block. Blocks share the depth in `splits` parts.
template <WeightOnlyConfig kConfig, typename Multiply>
__device__ inline void for_tiles(const WeightOnlyParams& params, unsigned splits, unsigned memory,
                                 Multiply&& multiply) {
  if constexpr (!kConfig.has_groups()) {
    multiply(config::weight_only_tile<long long>(kConfig, params.rows, params.columns,
                                                 blockIdx.x / splits));
  } else {
    config::WeightOnlyTile tile{};
#pragma unroll 1
    for (unsigned index = blockIdx.x; find_group_tile<kConfig>(params, index, tile);
         index += gridDim.x) {
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
