// Keys of a row part by part. For results that do not depend on what else is in the batch
// (docs/batch-invariance.md) keys are cut at multiples of AttentionForm::part_keys, from the first
// key of the sequence on. Each part is summed from nothing, and added to those before it in their
// order. Who does it does not matter: one block has the row's sums in the workspace from part to
// part, or a block has each part and combine_splits.h adds them, by the same arithmetic. So plans
// split keys as it suits the batch. A part of which a row sees nothing leaves its bits as they are,
// whatever lies there.
#pragma once

#include "kernels/attention/rows.h"
#include "kernels/ptx/arithmetic.h"

namespace octofold::attention {

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

}  // namespace octofold::attention
