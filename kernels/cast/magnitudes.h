// The largest magnitudes among what threads hold, packed as in numeric/vector.h.
#pragma once

#include "kernels/numeric/vector.h"

namespace octofold::cast {

template <DType kType>
__device__ inline unsigned largest_of_vector(const unsigned (&words)[4]) {
  unsigned magnitudes = numeric::magnitude<kType>(words[0]);
#pragma unroll
  for (int i = 1; i < 4; ++i) {
    magnitudes = numeric::larger<kType>(magnitudes, numeric::magnitude<kType>(words[i]));
  }
  return magnitudes;
}

// Among kWidth neighbouring threads of a warp, all of which get them.
template <DType kType, int kWidth>
__device__ inline unsigned largest_of_lanes(unsigned magnitudes) {
#pragma unroll
  for (int distance = kWidth / 2; distance > 0; distance /= 2) {
    magnitudes =
        numeric::larger<kType>(magnitudes, __shfl_xor_sync(0xFFFFFFFFu, magnitudes, distance));
  }
  return magnitudes;
}

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
