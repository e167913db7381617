// Groups of warpgroups that share the depth of a tile: the first one adds what the others have, in
// their order, each thread the sums of the thread that has the same places. A block has one tile
// then, so that the ring is free for them.
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/weight_only_sm90/products.h"

namespace octofold::weight_only_sm90 {

// Adds up the groups' sums; true if the thread has those of all groups now.
template <Sm90WeightOnlyConfig kConfig>
__device__ bool add_groups(const SharedMemory<kConfig>& smem, int group, Sums<kConfig>& sums) {
  constexpr unsigned kBarrier = 1 + kConfig.warpgroups;  // behind those of stores
  constexpr int kVectors = kConfig.tile_rows / 8;
  const int thread = static_cast<int>(threadIdx.x) % kConfig.group_threads();
  const auto place = [&](int vector, int sub_tile) {
    return ((sub_tile * kVectors + vector) * kConfig.group_threads() + thread) * 16;
  };
  const auto for_vectors = [&](auto&& use) {
#pragma unroll
    for (int i = 0; i < kVectors * kConfig.sub_tiles(); ++i) {
      use(place(i % kVectors, i / kVectors), &sums[i / kVectors][i % kVectors * 4]);
    }
  };
  ptx::barrier_sync(kBarrier, kConfig.consumer_threads());  // nobody reads a stage any longer
  if (group > 0) {
    for_vectors([&](int at, const float* four) {
      const unsigned words[4] = {__float_as_uint(four[0]), __float_as_uint(four[1]),
                                 __float_as_uint(four[2]), __float_as_uint(four[3])};
      ptx::store_shared_words(smem.group_sums(group) + at, words);
    });
    ptx::barrier_sync(kBarrier, kConfig.consumer_threads());
    return false;
  }
  ptx::barrier_sync(kBarrier, kConfig.consumer_threads());
#pragma unroll
  for (int other = 1; other < kConfig.depth_groups; ++other) {
    for_vectors([&](int at, float* four) {
      const float4 more = ptx::load_shared_four(smem.group_sums(other) + at);
      four[0] += more.x, four[1] += more.y, four[2] += more.z, four[3] += more.w;
    });
  }
  return true;
}

}  // namespace octofold::weight_only_sm90
