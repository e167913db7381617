// Sums and largest magnitudes of columns: of the rows of a tile, to the workspace, and from there
// of all rows. All is added in an order that only the number of rows decides: the same input gives
// the same bits, whatever else is cast.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/config/column_reductions.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/tile.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/shared/arithmetic.h"

namespace octofold {
namespace cast {

using config::ColumnReductionConfig;

// The sums and magnitudes of columns over the rows that each group of threads holds.
template <TileCastConfig kConfig>
struct ColumnsOfGroups {
  static constexpr int kSums = kConfig.columns.sums ? kConfig.groups() : 1;
  static constexpr int kMagnitudes = kConfig.columns.amax ? kConfig.groups() : 1;

  float sums[kSums][kScaleBlock];                                    // see place_of
  alignas(16) unsigned magnitudes[kMagnitudes][kConfig.lanes()][4];  // packed as the columns are
};

// The place of a column's sum: neither lanes that write that of the same element of their vectors,
// nor threads that read neighbouring columns, meet in a bank.
template <DType kIn>
__device__ constexpr int place_of(int column) {
  constexpr int kPerWord = numeric::kPerWord<kIn>, kVector = 4 * kPerWord;
  const int word = column % kVector / kPerWord;
  const int within = column / kVector * kPerWord + column % kPerWord;
  return word * 32 + (within + word * 8) % 32;
}

// Rows that do not exist are zeros. Other threads may still read `shared` afterwards.
template <TileCastConfig kConfig>
__device__ inline void reduce_columns(const CastParams& params, const Tile<kConfig>& tile,
                                      ColumnsOfGroups<kConfig>& shared) {
  constexpr DType kIn = kConfig.format.in;
  constexpr int kRows = Tile<kConfig>::kRows;
  constexpr int kPerWord = numeric::kPerWord<kIn>;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if constexpr (kConfig.columns.sums) {
      float sums[kPerWord] = {};
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        float values[kPerWord];
        numeric::widen<kIn>(&tile.words[row][word], values);
#pragma unroll
        for (int i = 0; i < kPerWord; ++i) sums[i] = __fadd_rn(sums[i], values[i]);
      }
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        const int column = tile.lane * tile.kVector + word * kPerWord + i;
        shared.sums[tile.group][place_of<kIn>(column)] = sums[i];
      }
    }
    if constexpr (kConfig.columns.amax) {
      unsigned magnitudes = 0;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        magnitudes =
            numeric::larger<kIn>(magnitudes, numeric::magnitude<kIn>(tile.words[row][word]));
      }
      shared.magnitudes[tile.group][tile.lane][word] = magnitudes;
    }
  }
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kScaleBlock || tile.first_col() + column >= params.cols) return;
  const long long at = tile.place.m * params.cols + tile.first_col() + column;
  if constexpr (kConfig.columns.sums) {
    float sum = 0;
#pragma unroll
    for (const auto& group : shared.sums) sum = __fadd_rn(sum, group[place_of<kIn>(column)]);
    params.columns.partial_sums[at] = sum;
  }
  if constexpr (kConfig.columns.amax) {
    unsigned magnitudes = 0;
#pragma unroll
    for (const auto& group : shared.magnitudes) {
      const unsigned of_group = reinterpret_cast<const Storage<kIn>*>(group)[column];
      magnitudes = numeric::larger<kIn>(magnitudes, of_group);
    }
    params.columns.partial_amax[at] = numeric::largest<kIn>(magnitudes);
  }
}

// Reduces columns over all rows: groups of threads take shares of the workspace's rows, each in
// order, and then the shares are put together in order.
template <ColumnReductionConfig kConfig>
class ColumnReduction {
  static constexpr int kColumns = kConfig.kColumns;
  static constexpr int kGroups = kConfig.kGroups;

 public:
  struct Shared {
    float sums[kGroups][kColumns];
    unsigned magnitudes[kGroups][kColumns];
  };

  __device__ ColumnReduction(const CastParams& params, Shared& shared)
      : params_(params), shared_(shared) {
    lane_ = static_cast<int>(threadIdx.x % kColumns);
    group_ = static_cast<int>(threadIdx.x / kColumns);
    col_ = static_cast<long long>(blockIdx.x) * kColumns + lane_;
  }

  __device__ void run() {
    if (col_ < params_.cols) reduce_share();
    __syncthreads();
    if (group_ != 0 || col_ >= params_.cols) return;
    float sum = 0;
    unsigned magnitude = 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if constexpr (kConfig.columns.sums) sum = __fadd_rn(sum, shared_.sums[group][lane_]);
      if constexpr (kConfig.columns.amax) {
        magnitude = numeric::larger<DType::kFloat32>(magnitude, shared_.magnitudes[group][lane_]);
      }
    }
    if constexpr (kConfig.columns.sums) params_.columns.sums[col_] = sum;
    if constexpr (kConfig.columns.amax) params_.columns.amax[col_] = __uint_as_float(magnitude);
  }

 private:
  __device__ void reduce_share() {
    const long long count = config::ceil_divide(params_.rows, config::kReducedRows);
    const long long end = count * (group_ + 1) / kGroups;
    float sum = 0;
    unsigned magnitude = 0;
#pragma unroll 4
    for (long long i = count * group_ / kGroups; i < end; ++i) {
      const long long at = i * params_.cols + col_;
      if constexpr (kConfig.columns.sums) {
        sum = __fadd_rn(sum, params_.columns.partial_sums[at]);
      }
      if constexpr (kConfig.columns.amax) {
        magnitude = numeric::larger<DType::kFloat32>(
            magnitude, __float_as_uint(params_.columns.partial_amax[at]));
      }
    }
    if constexpr (kConfig.columns.sums) shared_.sums[group_][lane_] = sum;
    if constexpr (kConfig.columns.amax) shared_.magnitudes[group_][lane_] = magnitude;
  }

  const CastParams& params_;
  Shared& shared_;
  long long col_;
  int lane_, group_;
};

}  // namespace cast

template <config::ColumnReductionConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    column_reduction_kernel(const __grid_constant__ config::CastParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  __shared__ typename cast::ColumnReduction<kConfig>::Shared shared;
  cast::ColumnReduction<kConfig>(params, shared).run();
}

}  // namespace octofold
