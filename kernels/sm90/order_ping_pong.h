// Order: consumer warpgroups take turns (ping-pong). Each passes a named barrier on to the next one
// when its products are under way: one promotes while the next one's products run.
//
// Against an early wait it gains where K is at most 512 (256×128: 1.264 of cuBLASLt's speed at
// 4096,32768,512, against 1.148) and loses 0.5 to 3 % elsewhere. Three warpgroups of 192×128 take
// over between 129 and 400 rows, and at K of at most 1536 (docs/notes/gemm-sm90.md). Together with
// an early wait it keeps the other warpgroups waiting too long.
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
    if (warpgroup.index() == kConfig.math_warpgroups - 1) after_products(warpgroup, false);
  }
  static __device__ void before_products(const Warpgroup& warpgroup) {
    ptx::barrier_sync(kFirstHandOver + warpgroup.index(), 2 * 128);
  }
  static __device__ void after_products(const Warpgroup& warpgroup, bool) {
    const int next = (warpgroup.index() + 1) % kConfig.math_warpgroups;
    ptx::barrier_arrive(kFirstHandOver + next, 2 * 128);
  }
  // Who has no products of a sub-tile takes and passes on the turn all the same.
  static __device__ void pass_sub_tile(const Warpgroup& warpgroup) {
    before_products(warpgroup);
    after_products(warpgroup, false);
  }
};

}  // namespace octofold::sm90
