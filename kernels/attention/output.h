// Queries into registers, results out of them.
#pragma once

#include "kernels/attention/config/attention.h"
#include "kernels/attention/rows.h"
#include "kernels/attention/softmax.h"
#include "kernels/ptx/global_memory.h"

namespace octofold::attention {

using config::AttentionForm;

// A row's query and head among all.
struct Place {
  int query;
  int head;
};
__device__ inline Place place_of(const AttentionParams& params, const Rows& rows, int row) {
  return {rows.first_query + row / params.group, rows.key_head * params.group + row % params.group};
}
// Of all queries times heads.
__device__ inline long long number_of(const AttentionParams& params, const Rows& rows,
                                      const Place& place) {
  const long long query =
      params.query_offsets != nullptr
          ? place.query
          : static_cast<long long>(rows.sequence) * params.queries + place.query;
  return query * params.heads + place.head;
}
// Dense sequences lie apart.
__device__ inline int batch_of(const AttentionParams& params, const Rows& rows) {
  return params.query_offsets != nullptr ? 0 : rows.sequence;
}

// Numbers `first` to first + 7 of a row of q; zeros where there are none. `flip` changes all signs.
template <int kHeadSize>
__device__ inline void load_query(const AttentionParams& params, const Rows& rows, int row,
                                  int first, bool flip, unsigned (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = 0;
  if (row >= rows.end || first >= kHeadSize) return;
  const Place place = place_of(params, rows, row);
  const auto* const numbers = static_cast<const unsigned short*>(params.q) +
                              batch_of(params, rows) * params.q_batch_stride +
                              place.query * params.q_stride + place.head * params.q_head_stride +
                              first;
  if (params.q_vectors) {
    ptx::load_cached(numbers, words);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i / 2] |= unsigned{numbers[i]} << i % 2 * 16;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] ^= flip ? 0x80008000u : 0u;
}

// Of all keys that the block has, numbers `dim` and dim + 1 of a row's sum of values; `inverse`: of
// the sum of weights.
template <AttentionForm kForm>
__device__ inline void store_pair(const AttentionParams& params, const Rows& rows, int row, int dim,
                                  float first, float second, float inverse) {
  const Place place = place_of(params, rows, row);
  if constexpr (kForm.split) {
    float* const sums =
        params.partials +
        (number_of(params, rows, place) * params.splits + rows.split) * kForm.value_size;
    sums[dim] = first;
    sums[dim + 1] = second;
  } else {
    // Values of keys that others see may be NaN.
    const bool seen = inverse != 0;
    const float pair[2] = {seen ? __fmul_rn(first, inverse) : 0,
                           seen ? __fmul_rn(second, inverse) : 0};
    unsigned word;
    numeric::narrow<kForm.q, false>(pair, &word);
    auto* const out = static_cast<unsigned short*>(params.out) +
                      batch_of(params, rows) * params.out_batch_stride +
                      place.query * params.out_stride + place.head * params.out_head_stride + dim;
    if (params.out_pairs) {
      ptx::store_global<4>(out, {word});
    } else {
      out[0] = static_cast<unsigned short>(word);
      out[1] = static_cast<unsigned short>(word >> 16);
    }
  }
}

// 1 / the sum of weights; 0 where no key was seen, so that the row has zeros.
__device__ inline float inverse_of(float sum) { return sum == 0 ? 0 : __fdiv_rn(1, sum); }

// The maximum of a row's scores in powers of two, and the sum of its weights.
template <AttentionForm kForm>
__device__ inline void store_state(const AttentionParams& params, const Rows& rows, int row,
                                   float maximum, float sum) {
  const Place place = place_of(params, rows, row);
  if constexpr (kForm.split) {
    const long long queries = params.query_offsets != nullptr
                                  ? params.queries
                                  : static_cast<long long>(params.batch) * params.queries;
    const long long rows_before = number_of(params, rows, place) * params.splits + rows.split;
    float* const state = params.partials +
                         queries * params.heads * params.splits * kForm.value_size +
                         2 * rows_before;
    state[0] = maximum;
    state[1] = sum;
  } else if (params.log_sum_exp != nullptr) {
    params.log_sum_exp[batch_of(params, rows) * params.log_sum_exp_batch_stride +
                       place.head * params.log_sum_exp_head_stride +
                       place.query * params.log_sum_exp_stride] =
        sum == 0 ? -infinity() : __fmul_rn(maximum + log2f(sum), kLn2);
  }
}

}  // namespace octofold::attention
