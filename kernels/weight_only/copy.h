// Copies of x and W into a stage of shared memory: all threads of the block, a unit of 16 bytes
// each at a time. What does not exist becomes 0.
#pragma once

#include "kernels/numeric/elements.h"
#include "kernels/weight_only/shared_memory.h"

namespace octofold::weight_only {

// The part of a matrix that a block reads: existing rows from the first one on, and of each the
// units from the first one on. Along one of both it goes on from step to step.
struct Source {
  const unsigned char* data;
  long long stride;  // bytes
  long long rows;
  long long bytes;  // of a row
};

template <WeightOnlyConfig kConfig>
class Copies {
  using S = Stage<kConfig>;
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kXBytes = size_of(kConfig.x);

 public:
  __device__ Copies(const WeightOnlyParams& params, config::WeightOnlyTile tile)
      : params_(params),
        tile_(tile),
        blocks_(static_cast<int>(config::ceil_divide(params.depth, kScaleBlock))) {
    const auto* const x = static_cast<const unsigned char*>(params.x);
    x_ = {x + tile.row * params.x_stride, params.x_stride, params.rows - tile.row,
          params.depth * kXBytes};
    if constexpr (kConfig.transposed) {
      w_ = {params.w + tile.column, params.w_stride, params.depth, params.columns - tile.column};
    } else {
      w_ = {params.w + tile.column * params.w_stride, params.w_stride, params.columns - tile.column,
            params.depth};
    }
  }

  // Starts what the step needs.
  __device__ void begin(const S& stage, int step) const {
    const long long first = static_cast<long long>(step) * kConfig.step_depth();
    if constexpr (kConfig.transposed) {
      copy<kConfig.step_depth(), S::kWUnits, false>(w_, first, 0, [&](int row, int unit) {
        return stage.w(row / kScaleBlock) + S::w_offset(row % kScaleBlock, unit);
      });
    } else {
      copy<S::kWRows, kConfig.warps_depth * S::kWUnits, false>(
          w_, 0, first, [&](int row, int unit) {
            return stage.w(unit / S::kWUnits) + S::w_offset(row, unit % S::kWUnits);
          });
    }
    copy<kConfig.tile_rows, kConfig.warps_depth * S::kXUnits, true>(
        x_, 0, first * kXBytes, [&](int row, int unit) {
          return stage.x(unit / S::kXUnits) + S::x_offset(row, unit % S::kXUnits);
        });
    if constexpr (kConfig.depth_factors) copy_factors(stage, first);
    if constexpr (kConfig.w_blocks) {
      copy_scales<kConfig.tile_columns>(stage.column_scales(), params_.w_scale, tile_.column,
                                        params_.columns, step);
    }
    if constexpr (kConfig.x_blocks) {
      copy_scales<kConfig.tile_rows>(stage.row_scales(), params_.x_scale, tile_.row, params_.rows,
                                     step);
    }
  }

 private:
  // kRows rows from first_row on, of each kUnits units from first_byte on; address_of(row, unit):
  // where they go.
  template <int kRows, int kUnits, bool kIsReadAgain, typename AddressOf>
  static __device__ void copy(const Source& source, long long first_row, long long first_byte,
                              AddressOf&& address_of) {
    static_assert(kThreads % kUnits == 0, "a thread has the same unit of all of its rows");
    constexpr int kStep = kThreads / kUnits;
    const int thread = static_cast<int>(threadIdx.x), unit = thread % kUnits;
    const long long at = first_byte + 16 * unit, left = source.bytes - at;
    const int rows =
        left > 0 ? static_cast<int>(min(source.rows - first_row, static_cast<long long>(kRows)))
                 : 0;
    int row = thread / kUnits;
    const unsigned char* from = source.data + (first_row + row) * source.stride + at;
#pragma unroll
    for (int i = 0; i < (kRows + kStep - 1) / kStep; ++i) {
      if (kRows % kStep != 0 && row >= kRows) break;
      const bool exists = row < rows;
      if constexpr (kConfig.vectors) {
        ptx::copy_async<16, kIsReadAgain>(address_of(row, unit), exists ? from : source.data,
                                          exists);
      } else {
        unsigned words[4];
        numeric::load<unsigned char, false, 16>(
            from, exists ? static_cast<int>(min(left, 16ll)) : 0, words);
        ptx::store_shared_words(address_of(row, unit), words);
      }
      row += kStep;
      from += kStep * source.stride;
    }
  }

  __device__ void copy_factors(const S& stage, long long first) const {
    const config::WeightOnlyScale& scale = params_.w_scale;
    const float* const factors = scale.data + (tile_.column >> scale.shift) * scale.stride;
    for (int i = static_cast<int>(threadIdx.x); i < kConfig.factors(); i += kThreads) {
      const bool exists = first + i < params_.depth;
      const float* const from = exists ? factors + (first + i) * scale.depth_stride : factors;
      ptx::copy_async<4, true>(stage.factors() + 4 * i, from, exists);
    }
  }

  // Those of kCount columns, or rows, from `first` on, for each block of the step; `count`: how
  // many there are at all. Those behind the last have its scales, which nobody uses.
  template <int kCount>
  __device__ void copy_scales(unsigned address, const config::WeightOnlyScale& scale,
                              long long first, long long count, int step) const {
    constexpr int kAll = kCount * kConfig.warps_depth;
    const float* const of_step =
        scale.data + static_cast<long long>(step) * kConfig.warps_depth * scale.depth_stride;
#pragma unroll
    for (int i = 0; i < (kAll + kThreads - 1) / kThreads; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      if (kAll % kThreads != 0 && at >= kAll) break;
      const int block = at / kCount;
      const long long index = min(first + at % kCount, count - 1);
      const long long offset = (index >> scale.shift) * scale.stride + block * scale.depth_stride;
      const bool exists = step * kConfig.warps_depth + block < blocks_;
      ptx::copy_async<4, true>(address + 4 * at, exists ? of_step + offset : scale.data, exists);
    }
  }

  const WeightOnlyParams& params_;
  config::WeightOnlyTile tile_;
  int blocks_;  // of the depth
  Source x_, w_;
};

}  // namespace octofold::weight_only
