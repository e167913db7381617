// Split-K within a cluster: its blocks share a tile, and each sums a slice of K. A block finishes
// and stores some of the tile's columns. It pushes its accumulators of the other columns from its
// registers into their owners' shared memory, to the thread that has the same places in its
// fragment. So nothing is transposed, and nobody waits but for what is sent to it. The slices are
// added in their order: the same bits whoever comes first. No memory is needed outside of the
// cluster.
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

// All consumer threads, once the cluster's barriers are known to be initialized. `slices`: where
// the sums of the other blocks arrive, in the order of these blocks; `full`: the barrier for them.
// Afterwards `sums` are those of the whole tile in the columns that the block owns.
template <config::SliceShape kShape, typename Sums>
__device__ void add_slices(unsigned slices, unsigned full, int rank, Sums& sums) {
  constexpr int kDepth = kShape.split_k;
  constexpr int kSubTiles = kShape.sub_tiles;
  constexpr int kVectors = kShape.columns / 8;  // four of a thread: eight columns
  constexpr int kOwned = kShape.owned_columns() / 8;
  const int thread = static_cast<int>(threadIdx.x);
  const auto offset = [&](int vector, int sub_tile) {
    return ((vector % kOwned * kSubTiles + sub_tile) * kShape.threads + thread) * 16;
  };
  const auto slice_of = [&](int other) { return slices + other * kShape.bytes(); };

  if (thread == 0) {
    const int owned = min(max(kVectors - rank * kOwned, 0), kOwned);
    ptx::mbarrier_arrive_expect_bytes(full, (kDepth - 1) * owned * kSubTiles * kShape.threads * 16);
  }
#pragma unroll
  for (int owner = 0; owner * kOwned < kVectors; ++owner) {
    if (owner == rank) continue;
    const unsigned target = ptx::address_at_rank(slice_of(rank < owner ? rank : rank - 1), owner);
    const unsigned barrier = ptx::address_at_rank(full, owner);
#pragma unroll
    for (int vector = owner * kOwned; vector < min((owner + 1) * kOwned, kVectors); ++vector) {
#pragma unroll
      for (int sub_tile = 0; sub_tile < kSubTiles; ++sub_tile) {
        const float* sum = &sums[sub_tile][4 * vector];
        ptx::store_async(target + offset(vector, sub_tile), {sum[0], sum[1], sum[2], sum[3]},
                         barrier);
      }
    }
  }

  ptx::mbarrier_wait(full, 0);
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    if (vector / kOwned != rank) continue;
#pragma unroll
    for (int sub_tile = 0; sub_tile < kSubTiles; ++sub_tile) {
      float* sum = &sums[sub_tile][4 * vector];
      const float4 own = {sum[0], sum[1], sum[2], sum[3]};
      float4 all = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int slice = 0; slice < kDepth; ++slice) {
        const int other = slice < rank ? slice : slice - 1;
        const float4 part =
            slice == rank ? own : ptx::load_shared_four(slice_of(other) + offset(vector, sub_tile));
        all = {all.x + part.x, all.y + part.y, all.z + part.z, all.w + part.w};
      }
      sum[0] = all.x, sum[1] = all.y, sum[2] = all.z, sum[3] = all.w;
    }
  }
}

// Blocks that split K have one tile. Their barriers must be known to each other when it is summed,
// not before: the cluster's barrier is arrived at when the kernel starts, and waited for then.
template <Sm90GemmConfig kConfig>
struct SplitK : Alone<kConfig> {
  static __device__ void begin() {
    ptx::cluster_arrive();
    __syncthreads();
  }
  static __device__ int rank() { return static_cast<int>(ptx::cluster_rank()); }
  template <typename Accumulators>
  static __device__ void reduce(const SharedMemory<kConfig>& smem, int rank, Accumulators& sums) {
    ptx::cluster_wait();
    add_slices<kConfig.slices()>(smem.base + smem.kLayout.slices, smem.slices_full(), rank, sums);
  }
  static __device__ void end_of_producers() { ptx::cluster_wait(); }
};

}  // namespace octofold::sm90
