// Order: ping-pong. Consumer warpgroups take turns: each passes a named barrier on to the next one
// when its products are under way, and promotes while the next one's products run.
//
// With three warpgroups at 192×128 it gains 1 to 2 %, between 129 and 400 rows and at K of at most
// 1536; at 256×128 it gains 10 % at K of at most 512 and costs 2 % elsewhere. Together with
// wait-ahead it keeps the other warpgroups waiting too long (docs/kernels/gemm-tilings.md).
#pragma once

#include "kernels/sm90/consumer.h"

namespace octofold::sm90 {

// Each warpgroup waits at a barrier of its own, which the one before it lets it pass. Barrier 0 is
// that of __syncthreads.
inline constexpr unsigned kFirstHandOver = 1;

template <typename Warpgroup>
struct PingPong : Free<Warpgroup> {
  static constexpr Sm90GemmConfig kConfig = Warpgroup::kConfig;

  static __device__ void begin(Warpgroup& warpgroup, bool) {
    // The first one begins.
    if (warpgroup.index() == kConfig.consumer_warpgroups - 1) after_products(warpgroup, false);
  }
  static __device__ void before_products(const Warpgroup& warpgroup) {
    ptx::barrier_sync(kFirstHandOver + warpgroup.index(), 2 * 128);
  }
  static __device__ void after_products(const Warpgroup& warpgroup, bool) {
    const int next = (warpgroup.index() + 1) % kConfig.consumer_warpgroups;
    ptx::barrier_arrive(kFirstHandOver + next, 2 * 128);
  }
  // A warpgroup without products in a sub-tile takes its turn and passes it on all the same.
  static __device__ void pass_sub_tile(const Warpgroup& warpgroup) {
    before_products(warpgroup);
    after_products(warpgroup, false);
  }
};

}  // namespace octofold::sm90
