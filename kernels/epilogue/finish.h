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
    !kConfig.reads_c() && kConfig.form.bias == Addend::kNone;

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

// D from registers straight to global memory.

// Any row stride, any alignment, any type: each thread stores pairs of columns. Of kColumns of a
// tile, from column `begin` of it on, those eights for which owns(first) says so, counted from
// `begin`. `first_row`: the thread's first in D. sum(sub_tile, i): i is 4 for each eight columns,
// then 2 for the lower row, then 1 for the second column.
template <GemmConfiguration auto kConfig, int kColumns, typename Owns, typename Sum>
__device__ void store_pairs(const GemmParams& params, const Tile& tile, int first_row, int begin,
                            Owns&& owns, Sum&& sum) {
  const ColumnFactors<kConfig, kColumns> column_factors(params, tile, begin);
  const RowFactors<kConfig> row_factors(params, tile, first_row);
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    if (!owns(8 * j)) continue;
    if (tile.column + begin + 8 * j >= tile.column_end) break;  // for all lanes
    const ColumnTerms<kConfig> columns(params, tile, column_factors, 8 * j, begin);
    if (columns.existing == 0) continue;
#pragma unroll
    for (int i = 0; i < 2 * kConfig.sub_tiles(); ++i) {
      const int sub_tile = i / 2, half = i % 2;
      const int row = first_row + kConfig.sub_tile_stride() * sub_tile + 8 * half;
      if (row >= tile.row_end) break;
      const int place = 4 * j + 2 * half;
      const float2 values = RowTerms<kConfig>(params, tile, row, row_factors.at(sub_tile, half))
                                .finish(columns, sum(sub_tile, place), sum(sub_tile, place + 1));
      const long long index = index_of<kConfig>(row, columns.column, params.out_stride);
      if constexpr (kConfig.swapped) {
        store_element<kConfig.form.out>(params.out, index, values.x);
        if (columns.existing == 2) {
          store_element<kConfig.form.out>(params.out, index + params.out_stride, values.y);
        }
      } else {
        store_pair<kConfig.form.out>(params.out, index, values, columns.existing == 2);
      }
    }
  }
}

}  // namespace octofold
