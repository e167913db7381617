// From sums of products to out: one rounding. Sums are those of all groups of warps, in shared
// memory, or where blocks split the depth those of all blocks, in memory.
#pragma once

#include "kernels/numeric/elements.h"
#include "kernels/numeric/vector.h"
#include "kernels/weight_only/gathered.h"
#include "kernels/weight_only/products.h"
#include "kernels/weight_only/walk.h"

namespace octofold::weight_only {

template <WeightOnlyConfig kConfig>
class Finish {
  using T = numeric::Storage<kConfig.out>;
  static constexpr int kPerRow = kConfig.tile_columns / 4;

 public:
  // `unit`: what sums are in.
  __device__ Finish(const WeightOnlyParams& params, float unit, int group = 0)
      : params_(params), unit_(unit), group_(group) {}

  __device__ void store(unsigned memory, config::WeightOnlyTile tile) const {
    for_sums(memory, tile,
             [&](long long row, long long column, float (&sums)[4]) { store(row, column, sums); });
  }

  // Stores sums of a part of the depth as they are.
  __device__ void store_sums(unsigned memory, config::WeightOnlyTile tile, int split) const {
    for_sums(memory, tile, [&](long long row, long long column, const float (&sums)[4]) {
      unsigned words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(sums[i]);
      numeric::store<unsigned, kConfig.store_vectors, 4>(
          reinterpret_cast<unsigned*>(partial(split, row, column)), exist(column), words);
    });
  }

  // Adds the sums of all parts of the depth, for four columns, and stores the results.
  __device__ void combine(long long row, long long column) const {
    float sums[4] = {};
    for (int split = 0; split < params_.splits; ++split) {
      unsigned words[4];
      numeric::load<unsigned, kConfig.store_vectors, 4>(
          reinterpret_cast<const unsigned*>(partial(split, row, column)), exist(column), words);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = __fadd_rn(sums[i], __uint_as_float(words[i]));
    }
    store(row, column, sums);
  }

 private:
  // use(row, column, sums) for each four columns of a tile that this thread has.
  template <typename Use>
  __device__ void for_sums(unsigned memory, config::WeightOnlyTile tile, Use&& use) const {
    constexpr int kThreads = kConfig.threads();
    for (int i = static_cast<int>(threadIdx.x); i < kConfig.tile_rows * kPerRow; i += kThreads) {
      const int in_row = i / kPerRow, in_column = i % kPerRow * 4;
      const long long row = tile.row + in_row, column = tile.column + in_column;
      if (row >= row_end<kConfig>(params_, tile) || column >= params_.columns) continue;
      if (!row_exists<kConfig>(params_, row)) continue;
      float sums[4] = {};
#pragma unroll
      for (int group = 0; group < kConfig.warps_depth; ++group) {
        const float4 four =
            ptx::load_shared_four(sum_address<kConfig>(memory, group, in_row, in_column));
        sums[0] = __fadd_rn(sums[0], four.x);
        sums[1] = __fadd_rn(sums[1], four.y);
        sums[2] = __fadd_rn(sums[2], four.z);
        sums[3] = __fadd_rn(sums[3], four.w);
      }
      use(row, column, sums);
    }
  }

  __device__ int exist(long long column) const {
    return static_cast<int>(min(params_.columns - column, 4ll));
  }
  __device__ float* partial(int split, long long row, long long column) const {
    return params_.partials + (split * params_.rows + row) * params_.columns + column;
  }

  __device__ void store(long long row, long long column, float (&values)[4]) const {
    const float row_factor = kConfig.x_blocks   ? 1
                             : kConfig.gathered ? factor_of_row<kConfig>(params_, row)
                                                : factor_of(params_.x_scale, row);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < exist(column)) values[i] = finished(values[i], row_factor, column + i);
    }
    unsigned words[sizeof(T)];
    numeric::narrow<kConfig.out, false>(values, words);
    T* const out = static_cast<T*>(params_.out) + row * params_.out_stride + column;
    numeric::store<T, kConfig.store_vectors, 4>(out, exist(column), words);
  }

  __device__ float finished(float sum, float row_factor, long long column) const {
    if (params_.depth > 0) {
      sum = __fmul_rn(sum, unit_);
      float factor = row_factor;
      if constexpr (!kConfig.w_blocks && !kConfig.depth_factors && !kConfig.ahead) {
        factor = __fmul_rn(factor_of(scale_of(params_, group_), column), row_factor);
      }
      sum = __fmul_rn(sum, factor);
    }
    if (params_.bias == nullptr) return sum;
    return __fadd_rn(sum, bias_of<kConfig.out>(params_, group_ * params_.columns + column));
  }

  const WeightOnlyParams& params_;
  float unit_;
  int group_;
};

}  // namespace octofold::weight_only
