// The tiles of a block: one of a dense product; of groups of rows those that fall to it.
#pragma once

#include "kernels/weight_only/gathered.h"
#include "kernels/weight_only/group_tiles.h"

namespace octofold::weight_only {

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
