// The tiles of one block of threads, in their order.
#pragma once

#include "kernels/config/gemm_config.h"
#include "kernels/config/gemm_params.h"
#include "kernels/config/tile_schedule.h"
#include "kernels/ptx/control.h"

namespace octofold {

// Every role of the block walks the same tiles. Coordinates are worked out where they are asked
// for: the mainloop needs none.
template <config::GemmConfig kConfig>
class TileWalk {
 public:
  __device__ explicit TileWalk(const config::GemmParams& params)
      : schedule_(config::tile_schedule(params.m, params.n, kConfig.cluster_tile_m(),
                                        kConfig.cluster_tile_n(), kConfig.raster_rows)),
        index_(static_cast<int>(blockIdx.x) / kConfig.cluster_size()),
        count_(schedule_.count()) {}

  __device__ bool has_tile() const { return index_ < count_; }
  __device__ void advance() { index_ += step(); }

  // Row and column of the tile's first element. A cluster's last tile may lie outside of D.
  __device__ config::TileCoordinate origin() const {
    config::TileCoordinate tile = schedule_.at(index_);
    tile.m *= kConfig.cluster_m;
    tile.n *= kConfig.cluster_n;
    if constexpr (kConfig.cluster_m > 1) tile.m += static_cast<int>(ptx::cluster_rank());
    if constexpr (kConfig.cluster_n > 1) tile.n += static_cast<int>(ptx::cluster_rank());
    return {tile.m * kConfig.tile_m, tile.n * kConfig.tile_n};
  }

  // How many tiles are still to come, this one counted in.
  __device__ int remaining() const { return config::ceil_divide(count_ - index_, step()); }

 private:
  __device__ static int step() { return static_cast<int>(gridDim.x) / kConfig.cluster_size(); }

  config::TileSchedule schedule_;
  int index_;
  int count_;
};

}  // namespace octofold
