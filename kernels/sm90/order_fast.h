// Order: no promotion (`fast_accumulation`). The tensor core sums all of K, at about 14 bits, and
// always has another stage's products to go on with.
#pragma once

#include "kernels/sm90/consumer.h"

namespace octofold::sm90 {

template <typename Warpgroup>
class SumInTensorCore {
 public:
  static constexpr Sm90GemmConfig kConfig = Warpgroup::kConfig;

  __device__ SumInTensorCore(Warpgroup&, bool) {}

  __device__ void add_stages(Warpgroup& warpgroup, const Tile& tile, bool,
                             Accumulators<kConfig>& sums) {
    int before = -1;  // the stage that may still be read
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      const int stage = warpgroup.stage();
      warpgroup.await_operands();
      ptx::wgmma_fence();
#pragma unroll
      for (int sub_tile = 0; sub_tile < Warpgroup::kSubTiles; ++sub_tile) {
        warpgroup.issue(stage, sub_tile, sums[sub_tile], true);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (before >= 0) warpgroup.release(before);
      before = stage;
      warpgroup.advance();
    }
    ptx::wgmma_wait<0>();
    if (before >= 0) warpgroup.release(before);
  }

  __device__ void pass_tile(Warpgroup& warpgroup, const Tile& tile, bool) {
    warpgroup.pass_stages(tile, [] {});
  }
};

}  // namespace octofold::sm90
