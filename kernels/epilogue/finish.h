// From accumulators to the values of D: scales that are constant along K, C, bias. With block
// scales and neither C nor bias they are the values of D, and nothing here has code.
//
// Rows and columns are the instruction's; where operands are swapped, D has them the other way
// round.
#pragma once

#include "kernels/epilogue/factors.h"
#include "kernels/epilogue/output.h"
#include "kernels/shared/gemm_params.h"

namespace octofold {

template <GemmConfiguration auto kConfig, Addend kAddend>
__device__ inline float load_addend(const void* data, long long index) {
  return load_element<kAddend == Addend::kFloat32 ? DType::kFloat32 : kConfig.form.out>(data,
                                                                                        index);
}

// True if D's values are just the accumulators, so that nobody needs to know where they belong.
template <GemmConfiguration auto kConfig>
inline constexpr bool kSumsAreFinal =
    varies_along_k(kConfig.rows().scales) && varies_along_k(kConfig.columns().scales) &&
    !kConfig.form.b_channel_scale && !kConfig.reads_c() && kConfig.form.bias == Addend::kNone;

// No load moves across this. Else the assembler reads the terms of all columns ahead, for which
// there are no registers: 56 bytes of spills (docs/notes/gemm-sm90.md).
template <GemmConfiguration auto kConfig>
__device__ void hold_back_loads() {
  if constexpr (!kSumsAreFinal<kConfig>) __syncwarp();
}

// The index of an element of D, or of C with its stride.
template <GemmConfiguration auto kConfig>
__device__ long long index_of(int row, int column, long long stride) {
  return kConfig.swapped ? column * stride + row : row * stride + column;
}

// The terms that two neighbouring columns contribute, the same for all rows. They are the lane's
// pair among the eight columns that begin `first` columns behind column `begin` of the tile, where
// the factors begin. All lanes of a warp make theirs together.
template <GemmConfiguration auto kConfig>
struct ColumnTerms {
  int column;
  int existing;  // how many of the two lie inside of D
  float scale[2];
  float bias[2] = {};

  template <int kColumns>
  __device__ ColumnTerms(const GemmParams& params, const Tile& tile,
                         const ColumnFactors<kConfig, kColumns>& factors, int first, int begin = 0)
      : column(tile.column + begin + first + 2 * (static_cast<int>(threadIdx.x) % 4)),
        existing(min(max(tile.column_end - column, 0), 2)),
        scale{factors.at(first, 0), factors.at(first, 1)} {
    if constexpr (kConfig.form.bias != Addend::kNone && !kConfig.swapped) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int of_operand = column + i + (tile.operand_column - tile.column);
        if (i < existing)
          bias[i] = load_addend<kConfig, kConfig.form.bias>(params.bias, of_operand);
      }
    }
  }
};

// The terms that a row contributes, the same for all columns. Nothing outside of D is read.
template <GemmConfiguration auto kConfig>
struct RowTerms {
  int row;
  bool exists;
  float scale;
  float bias = 0.0f;
  const void* c;
  long long c_stride;

  __device__ RowTerms(const GemmParams& params, const Tile& tile, int row_, float factor)
      : row(row_),
        exists(row < tile.row_end),
        scale(factor),
        c(params.c),
        c_stride(params.c_stride) {
    if constexpr (kConfig.form.bias != Addend::kNone && kConfig.swapped) {
      const int of_operand = row + (tile.operand_row - tile.row);
      if (exists) bias = load_addend<kConfig, kConfig.form.bias>(params.bias, of_operand);
    }
  }

  __device__ float2 finish(const ColumnTerms<kConfig>& columns, float first, float second) const {
    if constexpr (kSumsAreFinal<kConfig>) return {first, second};
    float values[2] = {first, second};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kColumnsHaveFactors<kConfig>) {
        constexpr bool kBoth = kRowsHaveFactors<kConfig>;
        values[i] *= kBoth ? scale * columns.scale[i] : columns.scale[i];
      } else if constexpr (kRowsHaveFactors<kConfig>) {
        values[i] *= scale;
      }
      if constexpr (kConfig.form.bias != Addend::kNone) {
        values[i] += kConfig.swapped ? bias : columns.bias[i];
      }
      // C comes last, and is rounded by itself, as TMA adds it: the same bits.
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
