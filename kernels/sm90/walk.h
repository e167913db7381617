// The walk of this block of threads over its tiles.
#pragma once

#include "kernels/shared/tile_walk.h"
#include "kernels/sm90/config/gemm.h"

namespace octofold::sm90 {

template <config::Sm90GemmConfig kConfig>
__device__ config::TileWalk<kConfig> walk_of(const config::Sm90GemmParams& params) {
  return {params.work, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
}

}  // namespace octofold::sm90
