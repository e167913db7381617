// D from registers straight to global memory.
#pragma once

#include "kernels/epilogue/finish.h"

namespace octofold {

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
