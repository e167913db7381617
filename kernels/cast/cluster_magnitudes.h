// The largest magnitudes of columns whose rows a cluster has, each of its blocks a tile of them.
// Each block stores its tile's in the shared memory of all, so that nobody reads another's, and may
// leave.
#pragma once

#include "kernels/cast/config/cast.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::cast {

// [tiles][128] in the launch's shared memory.
template <int kTiles>
class ClusterMagnitudes {
 public:
  // All threads of all blocks together: thread i < 128 has the magnitude of column i of its tile,
  // not negative, or NaN.
  static __device__ void share(float magnitude) {
    const int column = static_cast<int>(threadIdx.x);
    ptx::cluster_sync();  // all blocks are there
    if (column < kScaleBlock) {
      const unsigned place = place_of(ptx::cluster_rank(), column);
#pragma unroll
      for (unsigned block = 0; block < kTiles; ++block) {
        ptx::store_at_rank(place, block, __float_as_uint(magnitude));
      }
    }
    ptx::cluster_sync();
  }

  static __device__ float of_column(int column) {
    unsigned largest = 0;  // as whole numbers, of which NaN is the largest
#pragma unroll
    for (unsigned block = 0; block < kTiles; ++block) {
      const unsigned of_block = ptx::load_shared_word(place_of(block, column));
      largest = largest < of_block ? of_block : largest;
    }
    return __uint_as_float(largest);
  }

 private:
  static __device__ unsigned place_of(unsigned block, int column) {
    return ptx::dynamic_shared_memory() + 4 * (block * kScaleBlock + static_cast<unsigned>(column));
  }
};

}  // namespace octofold::cast
