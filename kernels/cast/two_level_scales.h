// Two-level scales of a tile: its values are divided by their channel's factor, and one scale is
// for all quotients of a target. A channel is a row of what is written: a column of the tile, in
// the cast of the transpose. Rows of the tile may have scales of 1x128 instead.
#pragma once

#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/line_magnitudes.h"
#include "kernels/cast/reductions.h"
#include "kernels/cast/tile.h"
#include "kernels/cast/unit.h"
#include "kernels/numeric/caster.h"
#include "kernels/shared/cast_rule.h"

namespace octofold::cast {

// Quotients are FP32, whatever they are made of.
template <CastFormat kFormat>
inline constexpr CastFormat kQuotientFormat{.in = DType::kFloat32,
                                            .out = kFormat.out,
                                            .granularity = Granularity::kBlock128x128,
                                            .rule = kFormat.rule,
                                            .power_of_two = kFormat.power_of_two,
                                            .saturate = kFormat.saturate};

template <CastFormat kFormat>
struct QuotientCaster {
  float inverse;  // of the channel's factor
  numeric::Caster<kFormat.rule.arithmetic, DType::kFloat32> caster;

  template <bool kUnusual, int kCount>
  __device__ void apply(float (&values)[kCount]) const {
#pragma unroll
    for (float& value : values) value = __fmul_rn(value, inverse);
    caster.template apply<kUnusual>(values);
  }
};

template <TileCastConfig kConfig>
class TwoLevelScales {
  static constexpr CastFormat kFormat = kConfig.format;
  static constexpr bool kLines = kFormat.scales_lines();  // rows have scales of 1x128
  using LineCaster = numeric::Caster<kFormat.rule.arithmetic, kFormat.in>;
  using SquareCaster = numeric::Caster<kFormat.rule.arithmetic, DType::kFloat32>;
  using Magnitudes = LineMagnitudes<kConfig, kConfig.to_rows, kConfig.to_transposed>;

 public:
  // Scratch is not needed any more after prepare(); Kept is.
  using Scratch = typename Magnitudes::Scratch;
  struct Kept {
    float inverses[kConfig.units()];  // of columns, then of rows; see place_of_line
    LineCaster lines[kLines ? kConfig.tile_rows : 1];
    unsigned warps[kConfig.threads() / 32];  // the largest quotients of their lines
  };
  static constexpr bool kScratchIsRead = false;

  __device__ TwoLevelScales(const CastParams& params, const Tile<kConfig>& tile, Scratch& scratch,
                            Kept& kept)
      : params_(params), tile_(tile), magnitudes_(tile, scratch), kept_(kept) {}

  // Makes the casters, and writes their scales. Returns whether any caster is unusual.
  __device__ bool prepare() {
    magnitudes_.share();
    const int number = static_cast<int>(threadIdx.x), row = number - kColumns;
    float quotient = 0;
    bool unusual = false;
    if (number < kColumns) {
      quotient =
          divide(number, magnitudes_.of_column(number), params_.transposed_channel_scale,
                 tile_.transposed_row(params_) + number, tile_.first_col() + number < params_.cols);
    } else if (number < kConfig.units()) {
      if constexpr (kLines) {
        LineCaster& caster = kept_.lines[row];
        caster = LineCaster::make(write_scale<kFormat>(line_scale(row), magnitudes_.of_row(row)));
        unusual = caster.is_unusual();
      } else {
        quotient =
            divide(number, magnitudes_.of_row(row), params_.row_channel_scale,
                   tile_.first_row() + row, tile_.first_row() + row < tile_.end_row(params_));
      }
    }
    // Quotients are compared as bits, in whose order a NaN is the largest.
    const unsigned largest = largest_of_lanes<DType::kFloat32, 32>(__float_as_uint(quotient));
    if (number % 32 == 0) kept_.warps[number / 32] = largest;
    if constexpr (LineCaster::kMayBeUnusual) {
      unusual = __syncthreads_or(unusual);
    } else {
      __syncthreads();
    }
    if constexpr (kConfig.to_transposed) {
      of_columns_ = make_square<0, kColumns>(tile_.transposed_scale(params_));
      unusual |= of_columns_.is_unusual();
    }
    if constexpr (kConfig.to_rows && !kLines) {
      of_rows_ = make_square<kColumns, kConfig.units()>(tile_.scale(params_));
      unusual |= of_rows_.is_unusual();
    }
    return unusual;
  }

  // Casters of a row that this thread holds, and of any column of the tile.
  __device__ auto of_row(int row) const {
    const int number = tile_.group * Tile<kConfig>::kRows + row;
    if constexpr (kLines) {
      return kept_.lines[number];
    } else {
      return QuotientCaster<kFormat>{kept_.inverses[kColumns + number], of_rows_};
    }
  }
  __device__ QuotientCaster<kFormat> of_column(int column) const {
    return {kept_.inverses[place_of_line<kConfig>(column)], of_columns_};
  }

 private:
  static constexpr int kColumns = kConfig.column_units();

  // The largest magnitude of a line, divided: the factor is positive, and products keep the order
  // of what they are made of.
  __device__ float divide(int number, float magnitude, const float* factors, long long channel,
                          bool exists) {
    const float factor = exists ? config::channel_factor(factors[channel]) : 1.0f;
    const float inverse = __frcp_rn(factor);
    kept_.inverses[place_of_line<kConfig>(number)] = inverse;
    return __fmul_rn(magnitude, inverse);
  }

  // Makes the caster of all quotients of the lines from kBegin to kEnd. Thread 0 writes the scale.
  template <int kBegin, int kEnd>
  __device__ SquareCaster make_square(float* scale) const {
    unsigned largest = 0;
#pragma unroll
    for (int warp = kBegin / 32; warp < kEnd / 32; ++warp) {
      largest = numeric::larger<DType::kFloat32>(largest, kept_.warps[warp]);
    }
    return SquareCaster::make(write_scale<kQuotientFormat<kFormat>>(
        threadIdx.x == 0 ? scale : nullptr, __uint_as_float(largest)));
  }

  // Null if there is no such row.
  __device__ float* line_scale(int row) const {
    const config::CastTarget& target = params_.row_target;
    const long long at = tile_.first_row() + row;
    if (at >= tile_.end_row(params_)) return nullptr;
    if (!is_written<kConfig.source>(params_, at)) return nullptr;
    return target.scale + at * target.scale_row_stride +
           tile_.first_col() / kScaleBlock * target.scale_col_stride;
  }

  const CastParams& params_;
  const Tile<kConfig>& tile_;
  Magnitudes magnitudes_;
  Kept& kept_;
  SquareCaster of_rows_, of_columns_;
};

}  // namespace octofold::cast
