// From sums to out: one rounding. A warpgroup turns its columns around in shared memory, some rows
// at a time, and stores whole lines.
#pragma once

#include "kernels/numeric/elements.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/weight_only/walk.h"
#include "kernels/weight_only_sm90/pipeline.h"
#include "kernels/weight_only_sm90/products.h"

namespace octofold::weight_only_sm90 {

template <Sm90WeightOnlyConfig kConfig>
class Store {
  using T = numeric::Storage<kConfig.out>;
  static constexpr int kSubTiles = kConfig.sub_tiles();
  static constexpr int kFours = kConfig.warpgroup_columns() / 4;  // of a row

 public:
  __device__ Store(const Sm90WeightOnlyParams& params, const SharedMemory<kConfig>& smem)
      : params_(params), smem_(smem), warpgroup_(static_cast<int>(threadIdx.x) / 128) {}

  // `rank`: the block's among those that share the tile, each of which stores some of its rows.
  __device__ void store(const Tile& tile, int rank, const Sums<kConfig>& sums) const {
    const long long column = tile.column + warpgroup_ * kConfig.warpgroup_columns();
    float factors[kSubTiles][2], biases[kSubTiles][2];
    load_terms(tile.group, column, factors, biases);
#pragma unroll
    for (int eight = 0; eight < kConfig.tile_rows / 8; ++eight) {
      if (8 * eight / kConfig.slices().owned_columns() != rank) continue;
      // All threads are done with this place when they have met once more, at the other one.
      const unsigned memory = smem_.output(warpgroup_, eight % 2);
#pragma unroll
      for (int sub_tile = 0; sub_tile < kSubTiles; ++sub_tile) {
        write(memory, 64 * sub_tile, &sums[sub_tile][4 * eight], factors[sub_tile],
              biases[sub_tile]);
      }
      ptx::barrier_sync(1 + warpgroup_, 128);
      copy(memory, tile.row + 8 * eight, tile.row_end, column);
    }
  }

 private:
  // The thread's two columns of two rows.
  __device__ void write(unsigned memory, int first, const float* sums, const float (&factors)[2],
                        const float (&biases)[2]) const {
    const Lane lane;
    const bool is_turned = column_of<kConfig>(lane, 0) % 2 != 0;
    const int column = first + column_of<kConfig>(lane, is_turned);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float lower = finished(sums[row], factors[0], biases[0]);
      const float upper = finished(sums[2 + row], factors[1], biases[1]);
      const float pair[2] = {is_turned ? upper : lower, is_turned ? lower : upper};
      unsigned words[sizeof(T) / 2];
      numeric::narrow<kConfig.out, false>(pair, words);
      ptx::store_shared_words(memory + (2 * lane.c + row) * kConfig.stored_row_bytes() +
                                  column * static_cast<int>(sizeof(T)),
                              words);
    }
  }

  static __device__ float finished(float sum, float factor, float bias) {
    return __fadd_rn(__fmul_rn(sum, factor), bias);
  }

  // Eight rows, four columns to a thread at a time.
  __device__ void copy(unsigned memory, long long first_row, long long row_end,
                       long long first_column) const {
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x) % 128; i < 8 * kFours; i += 128) {
      const long long row = first_row + i / kFours, column = first_column + i % kFours * 4;
      if (row >= row_end) continue;
      unsigned words[sizeof(T)];
      ptx::load_shared_words(memory + i / kFours * kConfig.stored_row_bytes() +
                                 i % kFours * 4 * static_cast<int>(sizeof(T)),
                             words);
      numeric::store<T, kConfig.store_vectors, 4>(
          static_cast<T*>(params_.out) + row * params_.out_stride + column,
          static_cast<int>(min(params_.work.columns - column, 4ll)), words);
    }
  }

  // Loads the factors and biases of sums in the thread's columns.
  __device__ void load_terms(int group, long long first, float (&factors)[kSubTiles][2],
                             float (&biases)[kSubTiles][2]) const {
    const config::WeightOnlyScale scale = weight_only::scale_of(params_, group);
#pragma unroll
    for (int i = 0; i < 2 * kSubTiles; ++i) {
      const int within = 64 * (i / 2) + column_of<kConfig>(Lane(), i % 2);
      const long long column = min(first + within, params_.work.columns - 1ll);
      constexpr bool kApplied = kConfig.w_blocks || kConfig.depth_factors;
      factors[i / 2][i % 2] = kApplied ? 1 : weight_only::factor_of(scale, column);
      biases[i / 2][i % 2] =
          params_.bias == nullptr
              ? 0
              : weight_only::bias_of<kConfig.out>(params_, group * params_.work.columns + column);
    }
  }

  const Sm90WeightOnlyParams& params_;
  const SharedMemory<kConfig>& smem_;
  const int warpgroup_;
};

}  // namespace octofold::weight_only_sm90
