// The k experts of each token that its router likes best, and their weights. A warp has one token,
// and lane l the experts l, l + 32, …, up to 32 of them in registers. Choices are integers of the
// same order as the scores, so that the best of a warp is one `redux.sync` for the largest and one
// for the first expert that has it: k rounds of that, each of which takes one out. Softmax is
// chosen by logits, which no rounding makes equal.
#pragma once

#include "kernels/numeric/lanes.h"
#include "kernels/ptx/control.h"
#include "kernels/routing/config/params.h"
#include "kernels/routing/config/routing.h"
#include "kernels/routing/scores.h"

namespace octofold {
namespace routing {

using config::TopKConfig;
using config::TopKParams;

template <TopKConfig kConfig>
class TopK {
  static constexpr int kEach = kConfig.per_lane;
  static constexpr unsigned kNobody = 0xFFFFFFFFu;

 public:
  __device__ TopK(const TopKParams& params, long long token)
      : params_(params), token_(token), lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void run() {
    const Logits<kConfig.in, kEach> logits(row(), params_.experts, lane_);
    const Scores<kConfig.scoring> scores(logits);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      orders_[i] = 0;
      if (!logits.exists(i)) continue;
      float choice = logits.values[i];  // scores have no other order
      if constexpr (kConfig.scoring == Scoring::kSigmoid) choice = scores.of(choice);
      if constexpr (kConfig.biased) choice = __fadd_rn(choice, params_.bias[logits.expert(i)]);
      orders_[i] = order_of(choice);
    }
    if constexpr (kConfig.grouped) keep_best_groups();
    unsigned id = 0;  // of this lane's slot
    for (int slot = 0; slot < params_.slots; ++slot) {
      const unsigned best = take_best();
      if (slot == lane_) id = best;
    }
    const bool has_slot = lane_ < params_.slots;
    const float score = has_slot ? scores.of(logits.at(static_cast<int>(id))) : 0;
    const float sum = params_.normalize ? sum_of_scores<kConfig.scoring>(score) : 1;
    if (!has_slot) return;
    params_.ids[token_ * params_.slots + lane_] = static_cast<int>(id);
    params_.weights[token_ * params_.weights_stride + lane_] =
        __fmul_rn(__fdiv_rn(score, sum), params_.scale);
  }

 private:
  __device__ const void* row() const {
    using T = numeric::Storage<kConfig.in>;
    return static_cast<const T*>(params_.logits) + token_ * params_.logits_stride;
  }

  // The best expert that is left, of equal ones the first; it is left no longer.
  __device__ unsigned take_best() {
    unsigned best = 0, expert = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (orders_[i] > best) {
        best = orders_[i];
        expert = static_cast<unsigned>(i * 32 + lane_);
      }
    }
    const unsigned best_of_all = numeric::max_of_lanes(best);
    const bool is_mine = best == best_of_all && best != 0;
    // In bounds too where nothing is left, which is not asked for.
    const unsigned first = numeric::min_of_lanes(is_mine ? expert : kNobody);
    const unsigned taken = first == kNobody ? 0 : first;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (static_cast<unsigned>(i * 32 + lane_) == taken) orders_[i] = 0;
    }
    return taken;
  }

  __device__ void keep_best_groups() {
    const int size = params_.experts / params_.groups;
    unsigned own = 0;  // of the group that has this lane's number
    for (int group = 0; group < params_.groups; ++group) {
      const unsigned order = order_of(two_best(group * size, (group + 1) * size));
      if (group == lane_) own = order;
    }
    unsigned kept = 0;
    for (int i = 0; i < params_.top_groups; ++i) {
      const unsigned best = numeric::max_of_lanes(own);
      const unsigned lane = static_cast<unsigned>(lane_);
      const unsigned first = numeric::min_of_lanes(own == best ? lane : 31u);
      kept |= 1u << first;
      if (lane == first) own = 0;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int group = min((i * 32 + lane_) / size, 31);
      if ((kept >> group & 1) == 0) orders_[i] = 0;
    }
  }

  // The sum of the two best choices of the experts from `begin` to `end`.
  __device__ float two_best(int begin, int end) const {
    unsigned best = 0, second = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int expert = i * 32 + lane_;
      const unsigned order = expert >= begin && expert < end ? orders_[i] : 0;
      if (order > best) {
        second = best;
        best = order;
      } else if (order > second) {
        second = order;
      }
    }
    const unsigned lane = static_cast<unsigned>(lane_);
    const unsigned best_of_all = numeric::max_of_lanes(best);
    const unsigned first = numeric::min_of_lanes(best == best_of_all ? lane : kNobody);
    const unsigned next = numeric::max_of_lanes(lane == first ? second : best);
    return __fadd_rn(number_of_order(best_of_all), number_of_order(next));
  }

  const TopKParams& params_;
  long long token_;
  int lane_;
  unsigned orders_[kEach];  // of the choices that are left; 0 of no more
};

}  // namespace routing

template <config::TopKConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    top_k_kernel(const __grid_constant__ config::TopKParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const long long token =
      static_cast<long long>(blockIdx.x) * kConfig.kTokens + static_cast<int>(threadIdx.x / 32);
  if (token < params.tokens) routing::TopK<kConfig>(params, token).run();
}

}  // namespace octofold
