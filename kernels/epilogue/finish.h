// From the sums of the mainloop to the values of D: scales that are constant along K, C, bias. Rows
// and columns are the instruction's; where operands are swapped, D has them the other way round.
#pragma once

#include "kernels/config/channel_scale.h"
#include "kernels/config/sm90_gemm.h"
#include "kernels/epilogue/output.h"

namespace octofold {

using config::Sm90GemmConfig;
using config::Sm90GemmParams;
using config::Tile;

template <Sm90GemmConfig kConfig, Addend kAddend>
__device__ inline float load_addend(const void* data, long long index) {
  return load_element<kAddend == Addend::kFloat32 ? DType::kFloat32 : kConfig.form.out>(data,
                                                                                        index);
}

// Whether D's values are just the sums, so that nobody needs to know where they belong.
template <Sm90GemmConfig kConfig>
inline constexpr bool kSumsAreFinal =
    varies_along_k(kConfig.rows().scales) && varies_along_k(kConfig.columns().scales) &&
    !kConfig.form.b_channel_scale && !kConfig.reads_c() && kConfig.form.bias == Addend::kNone;

// A scale that an operand's rows have each, or a tensor, or of tensors each group's.
__device__ inline float scale_of_group(const config::ScaleParams& scale, const Tile& tile,
                                       int row = 0) {
  return scale.data[tile.group * scale.group_stride + row * scale.row_stride];
}

// Index of an element of D, or of C with its stride.
template <Sm90GemmConfig kConfig>
__device__ long long index_of(int row, int column, long long stride) {
  return kConfig.swapped ? column * stride + row : row * stride + column;
}

// What two neighbouring columns contribute, the same for all rows: read once.
template <Sm90GemmConfig kConfig>
struct ColumnTerms {
  static constexpr bool kHasScale =
      kConfig.columns().scales == Granularity::kChannel || kConfig.columns_have_factors();

  int column;
  int existing;  // how many of the two lie inside of D
  float scale[2] = {1.0f, 1.0f};
  float bias[2] = {};

  __device__ ColumnTerms(const Sm90GemmParams& params, const Tile& tile, int column_)
      : column(column_), existing(min(max(tile.column_end - column, 0), 2)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i >= existing) continue;
      const int of_operand = column + i + (tile.operand_column - tile.column);
      if constexpr (kConfig.columns().scales == Granularity::kChannel) {
        const int of_group = kConfig.swapped ? of_operand : column + i;  // A's, or B's
        scale[i] = scale_of_group(params.columns.scale, tile, of_group);
      }
      if constexpr (kConfig.columns_have_factors()) {
        scale[i] = config::channel_factor(params.channel_scale[of_operand]);
      }
      if constexpr (kConfig.form.bias != Addend::kNone && !kConfig.swapped) {
        bias[i] = load_addend<kConfig, kConfig.form.bias>(params.bias, of_operand);
      }
    }
  }
};

// The same of a row, and the scales that all of D has. Nothing outside of D is read.
template <Sm90GemmConfig kConfig>
struct RowTerms {
  static constexpr bool kHasScale = !varies_along_k(kConfig.rows().scales) ||
                                    kConfig.rows_have_factors() ||
                                    kConfig.columns().scales == Granularity::kTensor;

  int row;
  bool exists;
  float scale = 1.0f;
  float bias = 0.0f;
  const void* c;
  long long c_stride;

  __device__ RowTerms(const Sm90GemmParams& params, const Tile& tile, int row_)
      : row(row_), exists(row < tile.row_end), c(params.c), c_stride(params.c_stride) {
    const int of_operand = row + (tile.operand_row - tile.row);
    if constexpr (kConfig.form.bias != Addend::kNone && kConfig.swapped) {
      if (exists) bias = load_addend<kConfig, kConfig.form.bias>(params.bias, of_operand);
    }
    if constexpr (kConfig.rows().scales == Granularity::kTensor) {
      scale = scale_of_group(params.rows.scale, tile);
    }
    if constexpr (kConfig.rows().scales == Granularity::kChannel) {
      const int of_group = kConfig.swapped ? row : of_operand;  // B's, or A's
      if (exists) scale = scale_of_group(params.rows.scale, tile, of_group);
    }
    if constexpr (kConfig.rows_have_factors()) {
      if (exists) scale = config::channel_factor(params.channel_scale[of_operand]);
    }
    if constexpr (kConfig.columns().scales == Granularity::kTensor) {
      scale *= scale_of_group(params.columns.scale, tile);
    }
  }

  __device__ float2 finish(const ColumnTerms<kConfig>& columns, float first, float second) const {
    if constexpr (kSumsAreFinal<kConfig>) return {first, second};
    float values[2] = {first, second};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (ColumnTerms<kConfig>::kHasScale) {
        values[i] *= kHasScale ? scale * columns.scale[i] : columns.scale[i];
      } else if constexpr (kHasScale) {
        values[i] *= scale;
      }
      if constexpr (kConfig.form.bias != Addend::kNone) {
        values[i] += kConfig.swapped ? bias : columns.bias[i];
      }
      // At last, and rounded by itself, as TMA adds it: the same bits.
      if constexpr (kConfig.reads_c()) {
        if (exists && i < columns.existing) {
          const long long index = index_of<kConfig>(row, columns.column + i, c_stride);
          values[i] = __fadd_rn(values[i], load_addend<kConfig, kConfig.form.c>(c, index));
        }
      }
    }
    return {values[0], values[1]};
  }
};

}  // namespace octofold
