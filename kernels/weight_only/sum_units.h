// Scales of blocks along the depth, without a second set of sums: sums of a column are in units of
// its scale at the time. Where the scale changes they are multiplied by what the last one is of
// the new one, and at the end by the last.
//
// A scale that is below 2^-60 of the largest before it counts as that: sums in its units could
// overflow, and beside those its products are no part of the result.
#pragma once

#include "kernels/weight_only/shared_memory.h"

namespace octofold::weight_only {

// The factors that a thread works out for columns of its own, a step or more before they are
// needed: sums are multiplied by them before a step is added.
template <WeightOnlyConfig kConfig>
class SumUnits {
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kColumns = kConfig.tile_columns;
  static constexpr int kOwn = (kColumns + kThreads - 1) / kThreads;

 public:
  __device__ SumUnits(const config::WeightOnlyScale& scale, long long first, long long count,
                      int blocks, int first_step)
      : depth_stride_(scale.depth_stride), blocks_(blocks) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const long long index = min(first + at(i) % kColumns, count - 1);
      from_[i] = scale.data + (index >> scale.shift) * scale.stride;
      if constexpr (kConfig.w_blocks) next_[i] = load(i, first_step);
    }
  }

  // Stores the factors of a step, the one behind that of the last call.
  __device__ void begin(int step, unsigned address) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float unit = unit_[i];
      enter(i, next_[i]);
      next_[i] = load(i, step + 1);
      if (kColumns % kThreads != 0 && at(i) >= kColumns) break;
      // Without sums so far, or with scales of 0 alone, all of them are 0.
      const float factor = unit == 0 || unit_[i] == 0 ? 0 : __fdiv_rn(unit, unit_[i]);
      ptx::store_shared_word(address + 4 * at(i), __float_as_uint(factor));
    }
  }

  // Stores the units of the last step.
  __device__ void store(unsigned address) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (kColumns % kThreads != 0 && at(i) >= kColumns) break;
      ptx::store_shared_word(address + 4 * at(i), __float_as_uint(unit_[i]));
    }
  }

 private:
  static __device__ int at(int i) { return i * kThreads + static_cast<int>(threadIdx.x); }

  __device__ float load(int i, int step) const {
    const int block = min(step * kConfig.step_depth() / kScaleBlock, blocks_ - 1);
    return block < 0 ? 0 : from_[i][block * depth_stride_];
  }

  __device__ void enter(int i, float scale) {
    // Not 0 either, where there are sums.
    const float least = fmaxf(largest_[i] * 0x1p-60f, fminf(largest_[i], 0x1p-126f));
    const float magnitude = fabsf(scale);
    unit_[i] = magnitude < least ? least : scale;
    if (magnitude < __uint_as_float(0x7F800000u)) largest_[i] = fmaxf(largest_[i], magnitude);
  }

  const float* from_[kOwn];
  float next_[kOwn] = {};
  float unit_[kOwn] = {};
  float largest_[kOwn] = {};
  long long depth_stride_;
  int blocks_;
};

}  // namespace octofold::weight_only
