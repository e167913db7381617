// Rows of A that arrive while the product runs: whoever reads them, or their scales, asks here
// before the first read of a tile. All waiting is in the producers: the consumers wait for stages.
#pragma once

#include "kernels/ptx/global_memory.h"
#include "kernels/shared/arrival_walk.h"
#include "kernels/sm90/pipeline.h"

namespace octofold::sm90 {

// Each thread that reads asks for itself, once for each shard; lanes of a warp ask together.
template <auto kConfig>
class AwaitRows<kConfig, config::Work::kArrivingRows> {
 public:
  __device__ void await(const Sm90GemmParams& params, const Tile& tile) {
    const config::WorkParams& work = params.work;
    const bool came = arrived_.require(config::arrival_order<kConfig>(work), tile.row, [&](int i) {
      const int place = work.first_shard + i;
      const int* const flag = work.numbers + (place < work.groups ? place : place - work.groups);
      while (ptx::load_acquire_system(flag) == 0) ptx::sleep_nanoseconds<kPause>();
    });
    if (came) ptx::fence_proxy_async_global();
  }

 private:
  static constexpr int kPause = 100;

  config::ArrivedShards arrived_;
};

}  // namespace octofold::sm90
