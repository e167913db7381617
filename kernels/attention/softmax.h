// The softmax of rows of scores whose keys come piece by piece: Milakov and Gimelshein 2018
// (arXiv:1805.02867). A lane has rows g = lane / 4 and g + 8 of 16, of each 8 keys the keys 2t and
// 2t + 1 with t = lane % 4, as products of a warp leave them (kernels/ptx/mma.h).
#pragma once

#include "kernels/attention/rows.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/arithmetic.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::attention {

// ---- Keys of a row part by part. For results that do not depend on what else is in the batch
// (docs/batch-invariance.md) keys are cut at multiples of AttentionForm::part_keys, from the first
// key of the sequence on. Each part is summed from nothing, and added to those before it in their
// order. Who does it does not matter: one block has the row's sums in the workspace from part to
// part, or a block has each part and combine_splits.h adds them, by the same arithmetic. So plans
// split keys as it suits the batch. A part of which a row sees nothing leaves its bits as they are,
// whatever lies there.

__device__ inline float infinity() { return __uint_as_float(0x7F800000u); }

// A row's state over some keys: the maximum of scores in powers of two, and the sum of weights. The
// sum of no keys is 0; NaN is a sum.
struct PartState {
  float maximum;
  float sum;
};

// How one part is added to those before it.
class PartSum {
 public:
  __device__ PartSum(const PartState& before, const PartState& own)
      : state_(own), has_before_(before.sum != 0), has_own_(own.sum != 0) {
    if (!has_before_) return;
    if (!has_own_) {
      state_ = before;
      return;
    }
    state_.maximum = fmaxf(before.maximum, own.maximum);
    const float shift = state_.maximum == -infinity() ? 0 : state_.maximum;
    of_before_ = ptx::exp2(__fadd_rn(before.maximum, -shift));
    of_own_ = ptx::exp2(__fadd_rn(own.maximum, -shift));
    state_.sum = (*this)(before.sum, own.sum);
  }

  __device__ const PartState& state() const { return state_; }
  __device__ bool has_before() const { return has_before_; }

  // Adds two sums of weights, or of values.
  __device__ float operator()(float before, float own) const {
    if (!has_own_) return has_before_ ? before : 0;
    return has_before_ ? __fmaf_rn(own, of_own_, __fmul_rn(before, of_before_)) : own;
  }

 private:
  PartState state_;
  bool has_before_, has_own_;
  float of_before_ = 0, of_own_ = 0;
};

// ---- The softmax of a warp's rows.

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// A reduction over the four lanes that share rows.
template <typename Choose>
__device__ inline float of_quad(float value, Choose&& choose) {
  value = choose(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return choose(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}
__device__ inline float max_of_quad(float value) {
  return of_quad(value, [](float left, float right) { return fmaxf(left, right); });
}
__device__ inline float sum_of_quad(float value) {
  return of_quad(value, [](float left, float right) { return __fadd_rn(left, right); });
}

// 1 / the sum of weights; 0 where no key was seen, so that the row has zeros.
__device__ inline float inverse_of(float sum) { return sum == 0 ? 0 : __fdiv_rn(1, sum); }

// A row's maximum of scores and sum of weights at its end. 2^(factor · score - shift) is not quite
// 1 at the maximum, as the shift is rounded, but 1 once the product with values has rounded it.
// Where no other weight counts, the sum is 1 too: a row's only value comes out as it is.
__device__ inline PartState state_of_row(float maximum, float factor, float sum) {
  const float shift = __fmul_rn(maximum, factor);
  const bool is_one = sum != 0 && sum == ptx::exp2(__fmaf_rn(maximum, factor, -shift));
  return {shift, is_one ? 1 : sum};
}

// A sum of values over the sum of weights. Values of keys that others see may be NaN.
__device__ inline float result_of(float sum, float inverse) {
  return inverse == 0 ? 0 : __fmul_rn(sum, inverse);
}

// Before any value: 1, or where scales of values differ none, so that the first one is taken.
template <AttentionForm kForm>
inline constexpr float kFirstUnit = kForm.v_scales ? 0 : 1;

// The state of two rows of a lane.
template <AttentionForm kForm>
struct RowState {
  static constexpr bool kHasUnits = kForm.part_keys > 0;  // of each row, or one of both

  float maximum[2] = {-infinity(), -infinity()};  // of scores, before `factor`
  float sum[2] = {};                              // this lane's, of weights
  float units[kHasUnits ? 2 : 1];  // what sums of values count in, where scales of values differ

  __device__ RowState() : units{kFirstUnit<kForm>} {
    if constexpr (kHasUnits) units[1] = kFirstUnit<kForm>;
  }
  __device__ float unit(int row) const { return units[kHasUnits ? row : 0]; }
};

// Scores of keys that a lane's row (0 or 1) does not see become -infinity.
template <int kTiles>
__device__ inline void mask(float (&scores)[kTiles][4], int row, int first_key, Range seen) {
  const int own = first_key + static_cast<int>(threadIdx.x % 4) * 2;
  const auto count = static_cast<unsigned>(max(seen.end - seen.begin, 0));
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto from_first = static_cast<unsigned>(own - seen.begin + 8 * tile + i);
      if (from_first >= count) scores[tile][2 * row + i] = -infinity();
    }
  }
}

// The multiplier of sums over `maximum` as `shift`, factor times a new one, takes its place. It is
// rounded as the shift was, so 1 where the maximum stays: tiles of which a row sees nothing leave
// no trace.
__device__ inline float rescale_of(float maximum, float factor, float shift) {
  return ptx::exp2(__fadd_rn(__fmul_rn(maximum, factor), -shift));
}

// Scores become weights, 2^(factor · (score - maximum)); `rescale` is what multiplies all that was
// summed before. factor > 0.
template <int kTiles, AttentionForm kForm>
__device__ inline void weigh(float (&scores)[kTiles][4], float factor, RowState<kForm>& state,
                             float (&rescale)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float maximum = state.maximum[row];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      maximum = fmaxf(maximum, fmaxf(scores[tile][2 * row], scores[tile][2 * row + 1]));
    }
    maximum = max_of_quad(maximum);
    // If nothing was seen so far, all weights are 2^-infinity.
    const float shift = maximum == -infinity() ? 0 : __fmul_rn(maximum, factor);
    rescale[row] = rescale_of(state.maximum[row], factor, shift);
    state.maximum[row] = maximum;
    float sum = __fmul_rn(state.sum[row], rescale[row]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 2 * row; i < 2 * row + 2; ++i) {
        scores[tile][i] = ptx::exp2(__fmaf_rn(scores[tile][i], factor, -shift));
        sum = __fadd_rn(sum, scores[tile][i]);
      }
    }
    state.sum[row] = sum;
  }
}

// The same over a maximum that stays until a score is beyond it by 2^kBeyond: so the lanes that
// share a row seldom have to agree on a new one. FP16 and BF16 hold such weights as well as smaller
// ones. Whether any sums of the warp have to be multiplied by `rescale`.
template <int kTiles, AttentionForm kForm>
__device__ inline bool weigh_lazily(float (&scores)[kTiles][4], const float (&factor)[2],
                                    RowState<kForm>& state, float (&rescale)[2]) {
  constexpr float kBeyond = 8;
  float largest[2] = {-infinity(), -infinity()};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      largest[row] = fmaxf(largest[row], fmaxf(scores[tile][2 * row], scores[tile][2 * row + 1]));
    }
  }
  const auto is_beyond = [&](int row) {
    return __fmul_rn(largest[row] - state.maximum[row], factor[row]) > kBeyond;
  };
  rescale[0] = rescale[1] = 1;
  const bool rises = __any_sync(0xFFFFFFFFu, is_beyond(0) || is_beyond(1));
  if (rises) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      largest[row] = max_of_quad(largest[row]);
      if (!is_beyond(row)) continue;
      rescale[row] = ptx::exp2(__fmul_rn(state.maximum[row] - largest[row], factor[row]));
      state.maximum[row] = largest[row];
      state.sum[row] = __fmul_rn(state.sum[row], rescale[row]);
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // If nothing was seen so far, all weights are 2^-infinity.
    const float shift =
        state.maximum[row] == -infinity() ? 0 : __fmul_rn(state.maximum[row], factor[row]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 2 * row; i < 2 * row + 2; ++i) {
        scores[tile][i] = ptx::exp2(__fmaf_rn(scores[tile][i], factor[row], -shift));
        state.sum[row] = __fadd_rn(state.sum[row], scores[tile][i]);
      }
    }
  }
  return rises;
}

// Each key's scale, of those that this lane has.
template <int kTiles>
__device__ inline void load_scales(unsigned address, float (&scales)[kTiles][2]) {
  address += threadIdx.x % 4 * 8;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float2 pair = ptx::load_shared_pair(address + static_cast<unsigned>(32 * tile));
    scales[tile][0] = pair.x;
    scales[tile][1] = pair.y;
  }
}

template <int kTiles>
__device__ inline void multiply_by_scales(float (&scores)[kTiles][4],
                                          const float (&scales)[kTiles][2]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[tile][i] = __fmul_rn(scores[tile][i], scales[tile][i % 2]);
  }
}

// The unit of sums of values, chosen so that weights times scales of values over it fit into 16
// bits: the one before as long as `largest` is within a factor of two of it, else that. So a scale
// that all values share loses nothing. It is 2^-40 to 2^40, that sums may go from one to another
// and stay in FP32; what lies beyond is beyond 16 bits of results too. `change` is what sums are
// multiplied by.
struct Unit {
  float value, inverse, change;

  __device__ Unit(float before, float largest) {
    const float held = fminf(fmaxf(largest, 0x1p-40f), 0x1p40f);
    const bool stays = held <= 2 * before && before <= 2 * held;
    value = stays ? before : held;
    inverse = __fdiv_rn(1, value);
    change = stays ? 1 : __fmul_rn(before, inverse);
  }
};

// Weights times scales of values at a shared address, over a unit of each row: that of the keys
// from `first_key` on which it sees, so that it does not matter which ones other rows see. Scales
// are loaded twice rather than kept in registers.
template <int kTiles, AttentionForm kForm>
__device__ inline void multiply_by_seen_scales(float (&weights)[kTiles][4], unsigned address,
                                               RowState<kForm>& state, float (&rescale)[2],
                                               int first_key, const Range (&seen)[2]) {
  address += threadIdx.x % 4 * 8;
  const int own = first_key + static_cast<int>(threadIdx.x % 4) * 2;
  const auto is_seen = [&](int row, int key) {  // of the lane's keys
    return static_cast<unsigned>(own - seen[row].begin + key) <
           static_cast<unsigned>(max(seen[row].end - seen[row].begin, 0));
  };
  float largest[2] = {-1, -1};  // they see none
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float2 pair = ptx::load_shared_pair(address + static_cast<unsigned>(32 * tile));
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      // NaN is none.
      const float first = is_seen(row, 8 * tile) ? fmaxf(fabsf(pair.x), 0) : -1;
      const float second = is_seen(row, 8 * tile + 1) ? fmaxf(fabsf(pair.y), 0) : -1;
      largest[row] = fmaxf(largest[row], fmaxf(first, second));
    }
  }
  float inverse[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    largest[row] = max_of_quad(largest[row]);
    const Unit unit(state.units[row], largest[row]);
    inverse[row] = unit.inverse;
    if (largest[row] < 0) continue;
    rescale[row] = __fmul_rn(rescale[row], unit.change);
    state.units[row] = unit.value;
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float2 pair = ptx::load_shared_pair(address + static_cast<unsigned>(32 * tile));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // The weight of what is not seen is 0, and its scale may be anything.
      const float scale = __fmul_rn(i % 2 ? pair.y : pair.x, inverse[i / 2]);
      if (is_seen(i / 2, 8 * tile + i % 2)) {
        weights[tile][i] = __fmul_rn(weights[tile][i], scale);
      }
    }
  }
}

// Weights times scales of values at a shared address, over their unit, which is that of all keys of
// the tile. With part_keys each row has its own; `first_key` and `seen` are for that.
template <int kTiles, AttentionForm kForm>
__device__ inline void multiply_by_value_scales(float (&weights)[kTiles][4], unsigned address,
                                                RowState<kForm>& state, float (&rescale)[2],
                                                int first_key, const Range (&seen)[2]) {
  if constexpr (RowState<kForm>::kHasUnits) {
    multiply_by_seen_scales(weights, address, state, rescale, first_key, seen);
    return;
  }
  float scales[kTiles][2];
  load_scales(address, scales);
  float largest = 0;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    largest = fmaxf(largest, fmaxf(fabsf(scales[tile][0]), fabsf(scales[tile][1])));
  }
  const Unit unit(state.units[0], max_of_quad(largest));
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    scales[tile][0] = __fmul_rn(scales[tile][0], unit.inverse);
    scales[tile][1] = __fmul_rn(scales[tile][1], unit.inverse);
  }
  multiply_by_scales(weights, scales);
  rescale[0] = __fmul_rn(rescale[0], unit.change);
  rescale[1] = __fmul_rn(rescale[1], unit.change);
  state.units[0] = unit.value;
}

template <int kTiles>
__device__ inline void clear(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) sums[i / 4][i % 4] = 0;
}

template <int kTiles>
__device__ inline void rescale_sums(float (&sums)[kTiles][4], const float (&rescale)[2]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[tile][i] = __fmul_rn(sums[tile][i], rescale[i / 2]);
  }
}

// Weights of 16 keys, the first of which is 16 · step, as a product's A.
template <DType kType, int kTiles>
__device__ inline void weights_of(const float (&weights)[kTiles][4], int step, unsigned (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float (&tile)[4] = weights[2 * step + i / 2];
    const float pair[2] = {tile[i % 2 * 2], tile[i % 2 * 2 + 1]};
    numeric::narrow<kType, false>(pair, &a[i]);
  }
}

}  // namespace octofold::attention
