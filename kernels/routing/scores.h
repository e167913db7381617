// A token's logits in a warp, and the scores that a router makes of them. Lane l has the experts l,
// l + 32, ...; each lane besides has one slot of the token.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/numeric/elements.h"
#include "kernels/numeric/lanes.h"
#include "kernels/numeric/vector.h"
#include "kernels/routing/config/routing.h"

namespace octofold::routing {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Whatever lanes hold, in the same order each time.
__device__ inline float sum_of_lanes(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

__device__ inline float number_of_order(unsigned order) {
  return __uint_as_float(config::bits_of_order(order));
}
__device__ inline unsigned order_of(float number) {
  return config::order_of_bits(__float_as_uint(number));
}

template <DType kIn, int kEach>
class Logits {
 public:
  __device__ Logits(const void* row, int experts, int lane)
      : row_(static_cast<const numeric::Storage<kIn>*>(row)), experts_(experts), lane_(lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) values[i] = exists(i) ? at(expert(i)) : 0;
  }

  __device__ int expert(int i) const { return i * 32 + lane_; }
  __device__ bool exists(int i) const { return expert(i) < experts_; }
  __device__ float at(int expert) const {
    const unsigned word = row_[expert];
    float value[1];
    numeric::widen<kIn>(&word, value);
    return value[0];
  }

  float values[kEach];  // 0 of what does not exist

 private:
  const numeric::Storage<kIn>* row_;
  int experts_, lane_;
};

// score(logit) of any expert of the token.
template <Scoring kScoring>
class Scores {
 public:
  // For all lanes together.
  template <DType kIn, int kEach>
  __device__ explicit Scores(const Logits<kIn, kEach>& logits) {
    if constexpr (kScoring == Scoring::kSoftmax) {
      unsigned largest = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const unsigned order = logits.exists(i) ? order_of(logits.values[i]) : 0;
        largest = largest > order ? largest : order;
      }
      largest_ = number_of_order(numeric::max_of_lanes(largest));
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (logits.exists(i)) sum = __fadd_rn(sum, exponential(logits.values[i]));
      }
      sum_ = sum_of_lanes(sum);
    }
  }

  __device__ float of(float logit) const {
    if constexpr (kScoring == Scoring::kSoftmax) {
      return __fdiv_rn(exponential(logit), sum_);
    } else {
      return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-logit)));
    }
  }

 private:
  __device__ float exponential(float logit) const { return expf(__fadd_rn(logit, -largest_)); }

  float largest_ = 0, sum_ = 1;
};

// The divisor of the chosen scores where weights are normalized; lanes without a slot have 0.
template <Scoring kScoring>
__device__ inline float sum_of_scores(float score) {
  constexpr float kLittle = kScoring == Scoring::kSigmoid ? 1e-20f : 0.0f;
  return __fadd_rn(sum_of_lanes(score), kLittle);
}

}  // namespace octofold::routing
