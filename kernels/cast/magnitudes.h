// The largest magnitudes among what threads hold, packed as in numeric/vector.h.
#pragma once

#include "kernels/numeric/magnitudes.h"

namespace octofold::cast {

using numeric::largest_of_lanes;
using numeric::largest_of_one;
using numeric::largest_of_vector;

// Among kWarps neighbouring warps. All warps of the block come here together; `of_warps` is in
// shared memory, with a word for each of them.
template <DType kType, int kWarps>
__device__ inline unsigned largest_of_warps(unsigned magnitudes, unsigned* of_warps) {
  magnitudes = largest_of_lanes<kType, 32>(magnitudes);
  if constexpr (kWarps == 1) return magnitudes;
  const unsigned warp = threadIdx.x / 32;
  const unsigned first = warp / kWarps * kWarps;
  if (threadIdx.x % 32 == 0) of_warps[warp] = magnitudes;
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < kWarps; ++i) {
    magnitudes = numeric::larger<kType>(magnitudes, of_warps[first + i]);
  }
  return magnitudes;
}

}  // namespace octofold::cast
