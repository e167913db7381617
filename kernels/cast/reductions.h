// Reductions over the threads that share a row: the largest magnitudes among what they hold, packed
// as in numeric/vector.h, and sums in an order that only the number of threads decides.
#pragma once

#include "kernels/numeric/lanes.h"

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

// Among the threads of a warp, all of which get the same bits.
__device__ inline float sum_of_lanes(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  }
  return value;
}

// Among kWarps neighbouring warps. All warps of the block come here together; `of_warps` is in
// shared memory, with a number for each of them, and nobody else's until the next barrier.
template <int kWarps>
__device__ inline float sum_of_warps(float value, float* of_warps) {
  value = sum_of_lanes(value);
  if constexpr (kWarps == 1) return value;
  const unsigned warp = threadIdx.x / 32;
  const unsigned first = warp / kWarps * kWarps;
  if (threadIdx.x % 32 == 0) of_warps[warp] = value;
  __syncthreads();
  float sum = of_warps[first];
#pragma unroll
  for (unsigned i = 1; i < kWarps; ++i) sum = __fadd_rn(sum, of_warps[first + i]);
  return sum;
}

// Four sums side by side, each of every fourth number: shorter than one, and more exact.
struct PartialSums {
  float sums[4] = {0, 0, 0, 0};

  template <int kCount>
  __device__ void add(const float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i % 4] = __fadd_rn(sums[i % 4], values[i]);
  }
  template <int kCount>
  __device__ void add_squares(const float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i % 4] = __fmaf_rn(values[i], values[i], sums[i % 4]);
  }
  __device__ float total() const {
    return __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
  }
};

}  // namespace octofold::cast
