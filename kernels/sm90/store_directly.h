// Store: D straight from registers, each thread pairs of columns. It takes any row stride, any
// alignment and any type.
#pragma once

#include "kernels/epilogue/finish.h"
#include "kernels/sm90/store_tile.h"

namespace octofold::sm90 {

template <Sm90GemmConfig kConfig>
struct StoreDirectly : StoreDefaults<kConfig> {
  __device__ explicit StoreDirectly(const SharedMemory<kConfig>&) {}

  __device__ void store(const Sm90GemmParams& params, const Tile& tile, int rank,
                        const Accumulators<kConfig>& sums) const {
    store_pairs<kConfig, kConfig.tile_columns>(
        params, tile, tile.row + first_row_of_thread<kConfig>(), 0,
        [&](int first) { return owns<kConfig>(first, rank); },
        [&](int sub_tile, int place) { return sums[sub_tile][place]; });
  }
};

}  // namespace octofold::sm90
