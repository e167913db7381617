// From the sums of all groups of warps, in shared memory, to out: one rounding.
#pragma once

#include "kernels/numeric/elements.h"
#include "kernels/numeric/vector.h"
#include "kernels/weight_only/products.h"

namespace octofold::weight_only {

template <WeightOnlyConfig kConfig>
class Finish {
  using T = numeric::Storage<kConfig.out>;
  static constexpr int kCount = 4;  // columns at a time
  static constexpr int kPerRow = kConfig.tile_columns / kCount;

 public:
  // `unit`: what the sums are in.
  __device__ Finish(const WeightOnlyParams& params, config::WeightOnlyTile tile, float unit)
      : params_(params), tile_(tile), unit_(unit) {}

  __device__ void run(unsigned memory) const {
    constexpr int kThreads = kConfig.threads();
    for (int i = static_cast<int>(threadIdx.x); i < kConfig.tile_rows * kPerRow; i += kThreads) {
      const int in_row = i / kPerRow, in_column = i % kPerRow * kCount;
      const long long row = tile_.row + in_row, column = tile_.column + in_column;
      if (row >= params_.rows || column >= params_.columns) continue;
      const int exist = static_cast<int>(min(params_.columns - column, 4ll));
      float values[kCount] = {};
#pragma unroll
      for (int group = 0; group < kConfig.warps_depth; ++group) {
        const float4 four =
            ptx::load_shared_four(sum_address<kConfig>(memory, group, in_row, in_column));
        values[0] = __fadd_rn(values[0], four.x);
        values[1] = __fadd_rn(values[1], four.y);
        values[2] = __fadd_rn(values[2], four.z);
        values[3] = __fadd_rn(values[3], four.w);
      }
      const float row_factor = kConfig.x_blocks ? 1 : factor_of(params_.x_scale, row);
#pragma unroll
      for (int at = 0; at < kCount; ++at) {
        if (at < exist) values[at] = finished(values[at], row_factor, column + at);
      }
      unsigned words[kCount * sizeof(T) / 4];
      numeric::narrow<kConfig.out, false>(values, words);
      T* const out = static_cast<T*>(params_.out) + row * params_.out_stride + column;
      numeric::store<T, kConfig.store_vectors, kCount>(out, exist, words);
    }
  }

 private:
  static __device__ float factor_of(const config::WeightOnlyScale& scale, long long index) {
    return scale.data == nullptr ? 1 : scale.data[(index >> scale.shift) * scale.stride];
  }

  __device__ float finished(float sum, float row_factor, long long column) const {
    if (params_.depth > 0) {
      sum = __fmul_rn(sum, unit_);
      float factor = row_factor;
      if constexpr (!kConfig.w_blocks && !kConfig.depth_factors) {
        factor = __fmul_rn(factor_of(params_.w_scale, column), row_factor);
      }
      sum = __fmul_rn(sum, factor);
    }
    return params_.bias == nullptr ? sum : __fadd_rn(sum, bias_of(column));
  }

  __device__ float bias_of(long long column) const {
    if (params_.bias_is_float32) return static_cast<const float*>(params_.bias)[column];
    const unsigned bits = static_cast<const T*>(params_.bias)[column];
    float value[1];
    numeric::widen<kConfig.out>(&bits, value);
    return value[0];
  }

  const WeightOnlyParams& params_;
  config::WeightOnlyTile tile_;
  float unit_;
};

}  // namespace octofold::weight_only
