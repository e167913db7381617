// The largest magnitudes among what the lanes of a warp hold, packed as in vector.h.
#pragma once

#include "kernels/numeric/vector.h"
#include "kernels/ptx/swap.h"

namespace octofold::numeric {

template <DType kType>
__device__ inline unsigned largest_of_vector(const unsigned (&words)[4]) {
  unsigned magnitudes = magnitude<kType>(words[0]);
#pragma unroll
  for (int i = 1; i < 4; ++i) magnitudes = larger<kType>(magnitudes, magnitude<kType>(words[i]));
  return magnitudes;
}

// Among kWidth neighbouring lanes, all of which get them.
template <DType kType, int kWidth>
__device__ inline unsigned largest_of_lanes(unsigned magnitudes) {
#pragma unroll
  for (int distance = kWidth / 2; distance > 0; distance /= 2) {
    magnitudes = larger<kType>(magnitudes, __shfl_xor_sync(0xFFFFFFFFu, magnitudes, distance));
  }
  return magnitudes;
}

// Reduces kCount vectors that kLanes neighbouring lanes share: the lane gets the amax of vector
// `lane % kLanes / (kLanes / kCount)`. Of two lanes, each hands on half of the vectors and keeps
// the other half, until it is left with one: few exchanges for all vectors together.
template <DType kType, int kLanes, int kCount>
__device__ inline unsigned largest_of_one(unsigned (&magnitudes)[kCount], int lane) {
  int distance = kLanes / 2;
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
    const unsigned upper = static_cast<unsigned>(lane & distance);
#pragma unroll
    for (int i = 0; i < half; ++i) {
      unsigned kept = magnitudes[i], given = magnitudes[half + i];
      ptx::swap_if(upper, kept, given);
      magnitudes[i] = larger<kType>(kept, __shfl_xor_sync(0xFFFFFFFFu, given, distance));
    }
    distance /= 2;
  }
  return largest_of_lanes<kType, kLanes / kCount>(magnitudes[0]);
}

}  // namespace octofold::numeric
