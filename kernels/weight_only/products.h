// The sums of a warp: by tensor cores, or of float32 by FMA. Either adds the products of 128
// numbers of the depth at a time, and leaves its sums in shared memory.
#pragma once

#include "kernels/ptx/mma.h"
#include "kernels/weight_only/fragments.h"

namespace octofold::weight_only {

// A warp's part of the products: of the block's tile, and of each step's depth.
template <WeightOnlyConfig kConfig>
struct Part {
  int columns;  // which of the warps along the columns
  int rows;
  int group;  // along the depth

  static __device__ Part of_warp() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    return {warp % kConfig.warps_columns, warp / kConfig.warps_columns % kConfig.warps_rows,
            warp / (kConfig.warps_columns * kConfig.warps_rows)};
  }
};

template <WeightOnlyConfig kConfig>
__device__ inline unsigned sum_address(unsigned memory, int group, int row, int column) {
  return memory + 4 * ((group * kConfig.tile_rows + row) * kConfig.sum_stride() + column);
}

template <WeightOnlyConfig kConfig>
class TensorProduct {
  using S = Stage<kConfig>;
  using W = Weights<kConfig>;
  using X = Rows<kConfig>;
  static constexpr int kColumnTiles = kConfig.column_tiles();
  static constexpr int kRowTiles = kConfig.row_tiles();
  using Sums = float[kColumnTiles][kRowTiles][4];

 public:
  static constexpr float kUnit = W::kUnit * X::kUnit;

  __device__ void add(const S& stage) {
    if constexpr (kConfig.has_blocks()) {
      Sums partial = {};
      multiply(stage, partial);
      float of_columns[kColumnTiles][2], of_rows[kRowTiles][2];
      load_scales(stage, of_columns, of_rows);
#pragma unroll
      for (int i = 0; i < kColumnTiles * kRowTiles * 4; ++i) {
        const int column = i / (4 * kRowTiles), row = i / 4 % kRowTiles, at = i % 4;
        float scale = 1;
        if constexpr (kConfig.w_blocks) scale = of_columns[column][at / 2];
        if constexpr (kConfig.x_blocks) scale = __fmul_rn(scale, of_rows[row][at % 2]);
        float& sum = sums_[column][row][at];
        sum = __fmaf_rn(partial[column][row][at], scale, sum);
      }
    } else {
      multiply(stage, sums_);
    }
  }

  __device__ void store(unsigned memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kColumnTiles * kRowTiles * 4; ++i) {
      const int tile = i / (4 * kRowTiles), row = row_of(i / 4 % kRowTiles, lane, i % 2);
      if (kConfig.tile_rows < 8 && row >= kConfig.tile_rows) continue;
      const int column = W::column(part_.columns, tile, lane / 4, i % 4 / 2);
      ptx::store_shared_word(sum_address<kConfig>(memory, part_.group, row, column),
                             __float_as_uint(sums_[tile][i / 4 % kRowTiles][i % 4]));
    }
  }

 private:
  // The first row of the warp's tile `tile` of eight, in the block's tile.
  __device__ int first_row(int tile) const { return 8 * (part_.rows * kRowTiles + tile); }
  __device__ int row_of(int tile, int lane, int second) const {
    return first_row(tile) + lane % 4 * 2 + second;
  }

  __device__ void load_scales(const S& stage, float (&of_columns)[kColumnTiles][2],
                              float (&of_rows)[kRowTiles][2]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (kConfig.w_blocks) {
#pragma unroll
      for (int i = 0; i < 2 * kColumnTiles; ++i) {
        const int column = W::column(part_.columns, i / 2, lane / 4, i % 2);
        of_columns[i / 2][i % 2] = ptx::load_shared(
            stage.column_scales() + 4 * (part_.group * kConfig.tile_columns + column));
      }
    }
    if constexpr (kConfig.x_blocks) {
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; ++i) {
        const int row = row_of(i / 2, lane, i % 2) % kConfig.tile_rows;
        of_rows[i / 2][i % 2] =
            ptx::load_shared(stage.row_scales() + 4 * (part_.group * kConfig.tile_rows + row));
      }
    }
  }

  __device__ void multiply(const S& stage, Sums& sums) const {
#pragma unroll kConfig.halves_at_once()
    for (int half = 0; half < 2; ++half) {
      W weights;
      weights.load(stage, part_.group, w_place_, half);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        unsigned a[2][kColumnTiles][4];
        weights.decode(2 * pair, a[0]);
        weights.decode(2 * pair + 1, a[1]);
#pragma unroll
        for (int row = 0; row < kRowTiles; ++row) {
          X x;
          x.load(stage, part_.group, x_place_, row, half, pair);
#pragma unroll
          for (int i = 0; i < 2 * kColumnTiles; ++i) {
            ptx::multiply_add<kConfig.factor_type()>(sums[i % kColumnTiles][row],
                                                     a[i / kColumnTiles][i % kColumnTiles],
                                                     x.b[i / kColumnTiles]);
          }
        }
      }
    }
  }

  const Part<kConfig> part_ = Part<kConfig>::of_warp();
  const unsigned w_place_ = W::place(part_.columns), x_place_ = X::place(first_row(0));
  Sums sums_ = {};
};

// A lane with g = lane / 4 and t = lane % 4 has columns g and g + 8, all rows, and of each 64 of
// the depth 16.
template <WeightOnlyConfig kConfig>
class FloatProduct {
  using S = Stage<kConfig>;
  using W = Weights<kConfig>;
  static constexpr int kRows = kConfig.tile_rows;
  using Sums = float[2][kRows];

 public:
  static constexpr float kUnit = W::kUnit;

  __device__ void add(const S& stage) {
    if constexpr (kConfig.w_blocks) {
      Sums partial = {};
      multiply(stage, partial);
      const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = W::column(part_.columns, 0, g, i);
        const float scale = ptx::load_shared(stage.column_scales() +
                                             4 * (part_.group * kConfig.tile_columns + column));
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          sums_[i][row] = __fmaf_rn(partial[i][row], scale, sums_[i][row]);
        }
      }
    } else {
      multiply(stage, sums_);
    }
  }

  __device__ void store(unsigned memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
      float sum = sums_[i / kRows][i % kRows];
      sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, 1));
      sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, 2));
      if (lane % 4 != 0) continue;
      const int column = W::column(part_.columns, 0, lane / 4, i / kRows);
      ptx::store_shared_word(sum_address<kConfig>(memory, part_.group, i % kRows, column),
                             __float_as_uint(sum));
    }
  }

 private:
  __device__ void multiply(const S& stage, Sums& sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll kConfig.halves_at_once()
    for (int half = 0; half < 2; ++half) {
      W weights;
      weights.load(stage, part_.group, w_place_, half);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        float w[2][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned halves =
              numeric::float16_pair_in_units<kConfig.w>(weights.word(word, 0, i / 2), i % 2);
          w[i / 2][i % 2 * 2] = ptx::float_of_float16(halves);
          w[i / 2][i % 2 * 2 + 1] = ptx::float_of_float16(halves >> 16);
        }
        const int unit = 4 * (lane % 4 + 4 * half) + word;
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          const float4 x = ptx::load_shared_four(stage.x(part_.group) + S::x_offset(row, unit));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& sum = sums[i][row];
            sum = __fmaf_rn(w[i][0], x.x, sum);
            sum = __fmaf_rn(w[i][1], x.y, sum);
            sum = __fmaf_rn(w[i][2], x.z, sum);
            sum = __fmaf_rn(w[i][3], x.w, sum);
          }
        }
      }
    }
  }

  const Part<kConfig> part_ = Part<kConfig>::of_warp();
  const unsigned w_place_ = W::place(part_.columns);
  Sums sums_ = {};
};

}  // namespace octofold::weight_only
