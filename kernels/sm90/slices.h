// Where the blocks of a cluster share a tile, each with a slice of K: they tell each other their
// sums, and each adds up the columns that it is to store. The sender pushes from its registers into
// the receiver's shared memory, to the thread that has the same places in its fragment, so that
// nothing is transposed, and nobody waits but for what is sent to it. The sums of all slices are
// added in the order of the slices: the same bits whoever comes first.
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/sm90/config/gemm.h"
#include "kernels/sm90/math.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

// The slice of this block; 0 where nothing is shared.
template <Sm90GemmConfig kConfig>
__device__ int slice_of_block() {
  return kConfig.cluster_depth > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
}

// All math threads, once the cluster's barriers are known to be initialized. Afterwards `sums` are
// those of the whole tile in the columns that the block owns.
template <Sm90GemmConfig kConfig>
__device__ void add_slices(const SharedMemory<kConfig>& smem, int rank, Sums<kConfig>& sums) {
  constexpr int kDepth = kConfig.cluster_depth;
  constexpr int kVectors = kConfig.tile_columns / 8;  // four sums of a thread: eight columns
  constexpr int kOwned = kConfig.owned_columns() / 8;
  constexpr int kThreads = kConfig.math_threads();
  const int thread = static_cast<int>(threadIdx.x);
  const auto offset = [&](int vector, int sub_tile) {
    return ((vector % kOwned * kConfig.sub_tiles() + sub_tile) * kThreads + thread) * 16;
  };

  if (thread == 0) {
    const int owned = min(max(kVectors - rank * kOwned, 0), kOwned);
    ptx::mbarrier_arrive_expect_bytes(smem.slices_full(),
                                      (kDepth - 1) * owned * kConfig.sub_tiles() * kThreads * 16);
  }
#pragma unroll
  for (int owner = 0; owner * kOwned < kVectors; ++owner) {
    if (owner == rank) continue;
    const unsigned target = ptx::address_at_rank(smem.slice(rank < owner ? rank : rank - 1), owner);
    const unsigned barrier = ptx::address_at_rank(smem.slices_full(), owner);
#pragma unroll
    for (int vector = owner * kOwned; vector < min((owner + 1) * kOwned, kVectors); ++vector) {
#pragma unroll
      for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
        const float* sum = &sums[sub_tile][4 * vector];
        ptx::store_async(target + offset(vector, sub_tile), {sum[0], sum[1], sum[2], sum[3]},
                         barrier);
      }
    }
  }

  ptx::mbarrier_wait(smem.slices_full(), 0);
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    if (vector / kOwned != rank) continue;
#pragma unroll
    for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
      float* sum = &sums[sub_tile][4 * vector];
      const float4 own = {sum[0], sum[1], sum[2], sum[3]};
      float4 all = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int slice = 0; slice < kDepth; ++slice) {
        const int other = slice < rank ? slice : slice - 1;
        const float4 part =
            slice == rank ? own
                          : ptx::load_shared_four(smem.slice(other) + offset(vector, sub_tile));
        all = {all.x + part.x, all.y + part.y, all.z + part.z, all.w + part.w};
      }
      sum[0] = all.x, sum[1] = all.y, sum[2] = all.z, sum[3] = all.w;
    }
  }
}

}  // namespace octofold::sm90
