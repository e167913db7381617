// The gradient by logits of the weights that top_k makes of them: a warp to a token, a lane to each
// of its slots, and to its experts as in top_k. With scores s, D = Σ s of the chosen (+ 1e-20),
// weights w = scale · s / D or scale · s, and gradients g by these:
//
//   by a chosen score: scale · (g - Σ g · s / D) / D, or scale · g
//   sigmoid: by a logit that · s · (1 - s);  softmax: s · (that - Σ that · s), of every expert
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/routing/config/params.h"
#include "kernels/routing/config/routing.h"
#include "kernels/routing/scores.h"

namespace octofold {
namespace routing {

using config::TopKGradientConfig;
using config::TopKGradientParams;

// One value, rounded.
template <DType kType>
__device__ inline numeric::Storage<kType> narrowed(float value) {
  if constexpr (kType == DType::kFloat32) {
    return __float_as_uint(value);
  } else {
    const float pair[2] = {value, 0};
    unsigned word[1];
    numeric::narrow<kType, false>(pair, word);
    return static_cast<numeric::Storage<kType>>(word[0]);
  }
}

template <TopKGradientConfig kConfig>
class TopKGradient {
  static constexpr DType kIn = kConfig.in;
  static constexpr int kEach = kConfig.per_lane;
  static constexpr Scoring kScoring = kConfig.scoring;

 public:
  __device__ TopKGradient(const TopKGradientParams& params, long long token)
      : params_(params), token_(token), lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void run() const {
    using T = numeric::Storage<kIn>;
    const T* row = static_cast<const T*>(params_.logits) + token_ * params_.logits_stride;
    const Logits<kIn, kEach> logits(row, params_.experts, lane_);
    const Scores<kScoring> scores(logits);

    // The expert, score and slope of this lane's slot.
    int id = lane_ < params_.slots ? params_.ids[token_ * params_.ids_stride + lane_] : -1;
    if (id >= params_.experts) id = -1;
    const float score = id >= 0 ? scores.of(logits.at(id)) : 0;
    float slope = 0;
    if (id >= 0) slope = params_.gradient[token_ * params_.gradient_stride + lane_];
    if (params_.normalize) {
      const float sum = sum_of_scores<kScoring>(score);
      const float share = id >= 0 ? __fdiv_rn(score, sum) : 0;
      const float mean = sum_of_lanes(__fmul_rn(slope, share));
      slope = id >= 0 ? __fdiv_rn(__fadd_rn(slope, -mean), sum) : 0;
    }
    slope = __fmul_rn(slope, params_.scale);
    float mean = 0;
    if constexpr (kScoring == Scoring::kSoftmax) {
      mean = sum_of_lanes(__fmul_rn(slope, score));
    } else {
      slope = __fmul_rn(__fmul_rn(slope, score), __fadd_rn(1.0f, -score));
    }

    float slopes[kEach] = {};  // of this lane's experts
    for (int slot = 0; slot < params_.slots; ++slot) {
      const int chosen = __shfl_sync(kAllLanes, id, slot);
      const float of_chosen = __shfl_sync(kAllLanes, slope, slot);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (logits.expert(i) == chosen) slopes[i] = __fadd_rn(slopes[i], of_chosen);
      }
    }
    T* out = static_cast<T*>(params_.logits_gradient) + token_ * params_.logits_gradient_stride;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!logits.exists(i)) continue;
      float value = slopes[i];
      if constexpr (kScoring == Scoring::kSoftmax) {
        value = __fmul_rn(scores.of(logits.values[i]), __fadd_rn(value, -mean));
      }
      out[logits.expert(i)] = narrowed<kIn>(value);
    }
  }

 private:
  const TopKGradientParams& params_;
  long long token_;
  int lane_;
};

}  // namespace routing

template <config::TopKGradientConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    top_k_gradient_kernel(const __grid_constant__ config::TopKGradientParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const long long token =
      static_cast<long long>(blockIdx.x) * kConfig.kTokens + static_cast<int>(threadIdx.x / 32);
  if (token < params.tokens) routing::TopKGradient<kConfig>(params, token).run();
}

}  // namespace octofold
