// Queries into registers, results out of them.
#pragma once

#include "kernels/attention/config/attention.h"
#include "kernels/attention/rows.h"
#include "kernels/attention/softmax.h"
#include "kernels/ptx/global_memory.h"

namespace octofold::attention {

// A row's query and head among all.
struct Place {
  int query;
  int head;
};
__device__ inline Place place_of(const AttentionParams& params, const Rows& rows, int row) {
  return {rows.first_query + row / params.group, rows.key_head * params.group + row % params.group};
}
// The number of a place among all queries times heads.
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

// A row of q, which exists.
__device__ inline const unsigned short* row_of_queries(const AttentionParams& params,
                                                       const Rows& rows, int row) {
  const Place place = place_of(params, rows, row);
  return static_cast<const unsigned short*>(params.q) +
         batch_of(params, rows) * params.q_batch_stride + place.query * params.q_stride +
         place.head * params.q_head_stride;
}

// Numbers `first` to first + 7 of a row of q; zeros where there are none. `flip` changes all signs.
template <int kHeadSize>
__device__ inline void load_query(const AttentionParams& params, const Rows& rows, int row,
                                  int first, bool flip, unsigned (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = 0;
  if (row >= rows.end || first >= kHeadSize) return;
  const unsigned short* const numbers = row_of_queries(params, rows, row) + first;
  if (params.q_vectors) {
    ptx::load_cached(numbers, words);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i / 2] |= unsigned{numbers[i]} << i % 2 * 16;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] ^= flip ? 0x80008000u : 0u;
}

// The address of a row's results.
__device__ inline unsigned short* row_of_out(const AttentionParams& params, const Rows& rows,
                                             int row) {
  const Place place = place_of(params, rows, row);
  return static_cast<unsigned short*>(params.out) +
         batch_of(params, rows) * params.out_batch_stride + place.query * params.out_stride +
         place.head * params.out_head_stride;
}

// The address of a row's sums of values if blocks split the keys or add parts.
template <AttentionForm kForm>
__device__ inline float* row_of_partials(const AttentionParams& params, const Rows& rows, int row) {
  const Place place = place_of(params, rows, row);
  return params.partials +
         (number_of(params, rows, place) * params.splits + rows.split) * kForm.value_size;
}

// The address of a row's maximum of scores and sum of weights in the same cases.
template <AttentionForm kForm>
__device__ inline float* state_in_partials(const AttentionParams& params, const Rows& rows,
                                           const Place& place) {
  const long long queries = params.query_offsets != nullptr
                                ? params.queries
                                : static_cast<long long>(params.batch) * params.queries;
  float* const states = params.partials + queries * params.heads * params.splits * kForm.value_size;
  const long long number = number_of(params, rows, place);
  // The other one of two: warps may still read what is there of the parts before.
  if constexpr (kForm.adds_parts()) return states + 4 * number + rows.parts_before % 2 * 2;
  return states + 2 * (number * params.splits + rows.split);
}

// Finishes a row's sums over the keys at hand: those of the keys that the block has, over the sum
// of their weights, or with parts those of all parts so far.
template <AttentionForm kForm>
class RowEnd {
 public:
  __device__ RowEnd(const AttentionParams& params, const Rows& rows, int row, const PartState& own)
      : sums_({0, 0}, own) {
    if constexpr (kForm.adds_parts()) {
      if (rows.parts_before > 0 && row < rows.end) {
        Rows before = rows;
        --before.parts_before;
        const float* const state =
            state_in_partials<kForm>(params, before, place_of(params, rows, row));
        sums_ = PartSum({state[0], state[1]}, own);
      }
    }
    inverse_ = inverse_of(sums_.state().sum);
  }
  // The end of the block's own sums, for a thread that knows the inverse of the sum alone.
  __device__ explicit RowEnd(float inverse) : sums_({0, 0}, {0, 1}), inverse_(inverse) {
    static_assert(!kForm.adds_parts(), "sums of parts take more");
  }

  __device__ const PartState& state() const { return sums_.state(); }
  __device__ float inverse() const { return inverse_; }

  // A sum of values together with that in the workspace, of the same thread.
  __device__ float with_before(const float* before, float own) const {
    if constexpr (!kForm.adds_parts()) return own;
    return sums_(sums_.has_before() ? *before : 0, own);
  }

 private:
  PartSum sums_;
  float inverse_;
};

// True if sums go to the workspace, rather than results to where they belong.
template <AttentionForm kForm>
__device__ inline bool keeps_sums(const Rows& rows) {
  return kForm.split || (kForm.adds_parts() && !rows.is_last_part);
}

// Numbers `dim` and dim + 1 of a row's sum of values.
template <AttentionForm kForm>
__device__ inline void store_pair(const AttentionParams& params, const Rows& rows, int row, int dim,
                                  float first, float second, const RowEnd<kForm>& end) {
  if constexpr (kForm.adds_parts()) {
    const float* const before = row_of_partials<kForm>(params, rows, row) + dim;
    first = end.with_before(before, first);
    second = end.with_before(before + 1, second);
  }
  if (keeps_sums<kForm>(rows)) {
    float* const sums = row_of_partials<kForm>(params, rows, row) + dim;
    sums[0] = first;
    sums[1] = second;
  } else {
    const float pair[2] = {result_of(first, end.inverse()), result_of(second, end.inverse())};
    unsigned word;
    numeric::narrow<kForm.q, false>(pair, &word);
    unsigned short* const out = row_of_out(params, rows, row) + dim;
    if (params.out_pairs) {
      ptx::store_global<4>(out, {word});
    } else {
      out[0] = static_cast<unsigned short>(word);
      out[1] = static_cast<unsigned short>(word >> 16);
    }
  }
}

// Words 4 · 4 of the four lanes that share rows, transposed: lane i has word i of each.
__device__ inline void transpose_quad(unsigned (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = threadIdx.x & static_cast<unsigned>(distance);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      unsigned &first = words[i], &second = words[i + distance];
      const unsigned other = __shfl_xor_sync(0xFFFFFFFFu, upper ? first : second, distance);
      (upper ? first : second) = other;
    }
  }
}

// A row's sums of values, the lane's row `of_lane` of two. All lanes of a warp are here, whether or
// not their rows exist.
template <AttentionForm kForm, int kTiles>
__device__ inline void store_row(const AttentionParams& params, const Rows& rows, int row,
                                 const float (&sums)[kTiles][4], int of_lane, float in_units,
                                 const RowEnd<kForm>& end) {
  const int lane = static_cast<int>(threadIdx.x % 4);
  const bool exists = row < rows.end;
  if (keeps_sums<kForm>(rows)) {
    if (!exists) return;
    float* const kept = row_of_partials<kForm>(params, rows, row) + 2 * lane;
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      if (8 * (i / 2) >= kForm.value_size) continue;
      float& to = kept[8 * (i / 2) + i % 2];
      to = end.with_before(&to, __fmul_rn(sums[i / 2][2 * of_lane + i % 2], in_units));
    }
    return;
  }
  const float* before = nullptr;
  if (kForm.adds_parts() && exists) {
    before = row_of_partials<kForm>(params, rows, row) + 2 * lane;
  }
  unsigned short* const out = exists ? row_of_out(params, rows, row) : nullptr;
  // Four tiles at a time: a lane's pairs of each become eight numbers of one.
#pragma unroll
  for (int first = 0; first < kTiles; first += 4) {
    unsigned words[4] = {};
#pragma unroll
    for (int i = 0; i < 4 && first + i < kTiles; ++i) {
      const float (&tile)[4] = sums[first + i];
      float pair[2] = {__fmul_rn(tile[2 * of_lane], in_units),
                       __fmul_rn(tile[2 * of_lane + 1], in_units)};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        // Sums of a row that does not exist are of no parts before.
        if (8 * (first + i) < kForm.value_size) {
          pair[j] = end.with_before(before + 8 * (first + i) + j, pair[j]);
        }
        pair[j] = result_of(pair[j], end.inverse());
      }
      numeric::narrow<kForm.q, false>(pair, &words[i]);
    }
    transpose_quad(words);
    const int dim = 8 * (first + lane);
    if (!exists || dim >= kForm.value_size) continue;
    if (params.out_vectors) {
      ptx::store_global<16>(out + dim, words);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        out[dim + i] = static_cast<unsigned short>(words[i / 2] >> i % 2 * 16);
      }
    }
  }
}

// The maximum of a row's scores in powers of two, and the sum of its weights.
template <AttentionForm kForm>
__device__ inline void store_state(const AttentionParams& params, const Rows& rows, int row,
                                   const RowEnd<kForm>& end) {
  const Place place = place_of(params, rows, row);
  const auto [maximum, sum] = end.state();
  if (keeps_sums<kForm>(rows)) {
    float* const state = state_in_partials<kForm>(params, rows, place);
    state[0] = maximum;
    state[1] = sum;
  } else if (params.log_sum_exp != nullptr) {
    params.log_sum_exp[batch_of(params, rows) * params.log_sum_exp_batch_stride +
                       place.head * params.log_sum_exp_head_stride +
                       place.query * params.log_sum_exp_stride] =
        sum == 0 ? -infinity() : __fmul_rn(maximum + log2f(sum), kLn2);
  }
}

// By the one thread that knows the end of a row's part: its state goes where it belongs, and what
// threads with sums of its values have to know to `shared`: the inverse, what the sums count in,
// and where parts are added the state.
template <AttentionForm kForm>
__device__ inline void share_end(const AttentionParams& params, const Rows& rows, int row,
                                 const PartState& state, float unit, unsigned shared) {
  ptx::store_shared(shared, {inverse_of(state.sum), unit});
  if constexpr (kForm.adds_parts()) ptx::store_shared(shared + 8, {state.maximum, state.sum});
  if (row >= rows.end) return;
  store_state<kForm>(params, rows, row, RowEnd<kForm>(params, rows, row, state));
}
__device__ inline float load_unit(unsigned shared) { return ptx::load_shared(shared + 4); }
template <AttentionForm kForm>
__device__ inline RowEnd<kForm> load_end(const AttentionParams& params, const Rows& rows, int row,
                                         unsigned shared) {
  if constexpr (kForm.adds_parts()) {
    const float2 state = ptx::load_shared_pair(shared + 8);
    return RowEnd<kForm>(params, rows, row, {state.x, state.y});
  } else {
    return RowEnd<kForm>(ptx::load_shared(shared));
  }
}

}  // namespace octofold::attention
