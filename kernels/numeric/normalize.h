// The arithmetic of norms: FP32, each operation rounded by itself, so that every kernel, the CPU
// backend and whoever repeats it get the same bits from the same statistics. Plain arithmetic, so
// that it compiles for the host too.
#pragma once

#include "octofold/vocabulary.h"

namespace octofold::numeric {

template <NormKind kKind>
__device__ inline float normalized(float x, float mean, float rstd) {
  if constexpr (kKind == NormKind::kLayer) x = __fadd_rn(x, -mean);
  return __fmul_rn(x, rstd);
}

// y · (1 + scale).
__device__ inline float modulated(float y, float scale) {
  return __fmul_rn(y, __fadd_rn(1.0f, scale));
}

// From the mean of squares.
__device__ inline float reciprocal_deviation(float variance, float epsilon) {
  return __frcp_rn(__fsqrt_rn(__fadd_rn(variance, epsilon)));
}

// The mean of `count` numbers, 0 if there are none.
__device__ inline float mean_of(float sum, long long count) {
  return __fdiv_rn(sum, static_cast<float>(count < 1 ? 1 : count));
}

}  // namespace octofold::numeric
