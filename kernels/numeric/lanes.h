// Reductions over all lanes of a warp.
#pragma once

#include "kernels/ptx/architecture.h"

namespace octofold::numeric {

// choose(left, right): either; which of them may not depend on their order.
template <typename T, typename Choose>
__device__ inline T chosen_of_lanes(T value, Choose&& choose) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = choose(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  }
  return value;
}

template <typename T>
__device__ inline T max_of_lanes(T value) {
  if constexpr (ptx::kHasAmpere) {
    return __reduce_max_sync(0xFFFFFFFFu, value);
  } else {
    return chosen_of_lanes(value, [](T left, T right) { return left < right ? right : left; });
  }
}

template <typename T>
__device__ inline T min_of_lanes(T value) {
  if constexpr (ptx::kHasAmpere) {
    return __reduce_min_sync(0xFFFFFFFFu, value);
  } else {
    return chosen_of_lanes(value, [](T left, T right) { return right < left ? right : left; });
  }
}

}  // namespace octofold::numeric
