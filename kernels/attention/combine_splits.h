// Adds up what blocks have that split the keys of a row: sums, maxima and sums of weights, which
// they left in the workspace. A warp has some columns of a row, and takes the splits in their
// order, eight of which are on their way together (docs/notes/attention.md). Parts of a fixed
// number of keys, `in_order`, are added one after the other (softmax.h); there may be any number of
// them, and sums of those that have seen nothing are not read.
#pragma once

#include "kernels/attention/config/attention.h"
#include "kernels/attention/rows.h"
#include "kernels/attention/softmax.h"
#include "kernels/numeric/elements.h"
#include "kernels/ptx/control.h"

namespace octofold {
namespace attention {

using config::CombineSplitsConfig;

// Shares of up to 64 splits in the sum, two of which a lane has.
class Shares {
 public:
  __device__ Shares(const float* states, int splits) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float sums[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool exists = lane + 32 * i < splits;
      shares_[i] = exists ? states[2 * (lane + 32 * i)] : -infinity();
      sums[i] = exists ? states[2 * (lane + 32 * i) + 1] : 0;
    }
    maximum_ = numeric::chosen_of_lanes(fmaxf(shares_[0], shares_[1]),
                                        [](float left, float right) { return fmaxf(left, right); });
    const float shift = maximum_ == -infinity() ? 0 : maximum_;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      shares_[i] = ptx::exp2(__fadd_rn(shares_[i], -shift));
      sums[i] = __fmul_rn(sums[i], shares_[i]);
    }
    sum_ = numeric::chosen_of_lanes(__fadd_rn(sums[0], sums[1]),
                                    [](float left, float right) { return __fadd_rn(left, right); });
  }

  // For all lanes.
  __device__ float operator[](int split) const {
    return __shfl_sync(0xFFFFFFFFu, split < 32 ? shares_[0] : shares_[1], split % 32);
  }
  __device__ float maximum() const { return maximum_; }
  __device__ float sum() const { return sum_; }

 private:
  float shares_[2];
  float maximum_, sum_;
};

inline constexpr int kSplitsAtOnce = 8;  // whose sums are on their way together

// A lane's numbers of a row, and the state of the whole row.
template <int kNumbers>
struct CombinedRow {
  float numbers[kNumbers] = {};
  PartState state{-infinity(), 0};
};

// Adds a row's splits by their shares of the sum. `sums` are the lane's.
template <CombineSplitsConfig kConfig, int kNumbers>
__device__ inline void combine_shares(const AttentionParams& params, const float* sums,
                                      const float* states, int own, CombinedRow<kNumbers>& row) {
  constexpr int kBatch = kSplitsAtOnce;
  const Shares shares(states, params.splits);
  float (&numbers)[kNumbers] = row.numbers;
  row.state = {shares.maximum(), shares.sum()};
#pragma unroll 1
  for (int begin = 0; begin < params.splits; begin += kBatch) {
    float of_splits[kBatch][kNumbers];
#pragma unroll
    for (int split = 0; split < kBatch; ++split) {
      const bool exists = begin + split < params.splits;
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        const bool there = exists && own + 32 * i < kConfig.value_size;
        of_splits[split][i] = there ? sums[(begin + split) * kConfig.value_size + 32 * i] : 0;
      }
    }
#pragma unroll
    for (int split = 0; split < kBatch; ++split) {
      const float share = begin + split < params.splits ? shares[begin + split] : 0;
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        // A split that has seen nothing may have met NaN in values.
        if (share != 0) numbers[i] = __fmaf_rn(of_splits[split][i], share, numbers[i]);
      }
    }
  }
}

// The same of parts in their order.
template <CombineSplitsConfig kConfig, int kNumbers>
__device__ inline void add_parts(const AttentionParams& params, const float* sums,
                                 const float* states, int own, CombinedRow<kNumbers>& row) {
#pragma unroll 1
  for (int begin = 0; begin < params.splits; begin += kSplitsAtOnce) {
    PartState own_states[kSplitsAtOnce];
    float of_parts[kSplitsAtOnce][kNumbers];
#pragma unroll
    for (int i = 0; i < kSplitsAtOnce; ++i) {
      const int part = begin + i;
      own_states[i] = {-infinity(), 0};
      if (part < params.splits) own_states[i] = {states[2 * part], states[2 * part + 1]};
    }
#pragma unroll
    for (int i = 0; i < kSplitsAtOnce; ++i) {
      const bool exists = own_states[i].sum != 0;
#pragma unroll
      for (int j = 0; j < kNumbers; ++j) {
        const bool there = exists && own + 32 * j < kConfig.value_size;
        of_parts[i][j] = there ? sums[(begin + i) * kConfig.value_size + 32 * j] : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kSplitsAtOnce; ++i) {
      const PartSum sum(row.state, own_states[i]);
#pragma unroll
      for (int j = 0; j < kNumbers; ++j) row.numbers[j] = sum(row.numbers[j], of_parts[i][j]);
      row.state = sum.state();
    }
  }
}

// Some columns of a row, from `first` on.
template <CombineSplitsConfig kConfig>
__device__ inline void combine_columns(const AttentionParams& params, long long row,
                                       long long row_count, int first) {
  constexpr int kNumbers = kConfig.columns() / 32;  // of a lane
  const int lane = static_cast<int>(threadIdx.x % 32), own = first + lane;
  const float* const sums = params.partials + row * params.splits * kConfig.value_size + own;
  const float* const states =
      params.partials + row_count * params.splits * kConfig.value_size + 2 * row * params.splits;
  CombinedRow<kNumbers> combined;
  if constexpr (kConfig.in_order) {
    add_parts<kConfig>(params, sums, states, own, combined);
  } else {
    combine_shares<kConfig>(params, sums, states, own, combined);
  }
  const auto [maximum, sum] = combined.state;
  const long long query = row / params.heads;
  const int head = static_cast<int>(row % params.heads);
  const bool packed = params.query_offsets != nullptr;
  const long long sequence = packed ? 0 : query / params.queries;
  const long long place = query - sequence * params.queries;
  const float inverse = inverse_of(sum);
  auto* const out = static_cast<unsigned short*>(params.out) + sequence * params.out_batch_stride +
                    place * params.out_stride + head * params.out_head_stride + own;
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) {
    const float pair[2] = {result_of(combined.numbers[i], inverse), 0};
    unsigned word;
    numeric::narrow<kConfig.q, false>(pair, &word);
    if (own + 32 * i < kConfig.value_size) out[32 * i] = static_cast<unsigned short>(word);
  }
  if (params.log_sum_exp != nullptr && own == 0) {
    params.log_sum_exp[sequence * params.log_sum_exp_batch_stride +
                       head * params.log_sum_exp_head_stride + place * params.log_sum_exp_stride] =
        sum == 0 ? -infinity() : __fmul_rn(maximum + log2f(sum), kLn2);
  }
}

}  // namespace attention

template <config::CombineSplitsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    combine_splits_kernel(const __grid_constant__ config::AttentionParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const long long warp = static_cast<long long>(blockIdx.x) * kConfig.warps + threadIdx.x / 32;
  const long long row = warp / kConfig.warps_of_row();
  const int first = static_cast<int>(warp % kConfig.warps_of_row()) * kConfig.columns();
  long long queries = params.queries;
  if (params.query_offsets == nullptr) queries *= params.batch;
  if (row >= queries * params.heads) return;
  if (params.query_offsets != nullptr) {
    // Rows of no sequence stay as they are.
    const long long query = row / params.heads;
    if (query < params.query_offsets[0] || query >= params.query_offsets[params.batch]) return;
  }
  attention::combine_columns<kConfig>(params, row, queries * params.heads, first);
}

}  // namespace octofold
