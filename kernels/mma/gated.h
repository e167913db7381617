// The codes of a gated activation, and their scales. A warp has some of the 128 columns that share
// a scale, gates and ups of the same ones: warps side by side tell each other the largest
// magnitudes of their rows. The codes lie in the ring, which all have read, before they leave as
// whole rows.
#pragma once

#include "kernels/epilogue/gated.h"
#include "kernels/mma/load.h"
#include "kernels/mma/products.h"
#include "kernels/ptx/global_memory.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::mma {

// The tile's codes from shared memory, in units of 16 bytes.
template <MmaGemmConfig kConfig>
__device__ void store_codes(const config::GemmParams& params, const config::Tile& tile,
                            unsigned codes) {
  static_assert(kConfig.tile_columns == kMmaDepth);  // place_of() is of rows of so many bytes
  for (int i = static_cast<int>(threadIdx.x); i < kConfig.tile_rows * kUnitsOfRow;
       i += kConfig.threads()) {
    const int row = i / kUnitsOfRow, unit = i % kUnitsOfRow;
    if (tile.row + row >= tile.row_end) return;
    unsigned words[kUnitBytes / 4];
    ptx::load_shared_words(codes + place_of(row, unit), words);
    auto* const out = static_cast<unsigned char*>(params.out);
    ptx::store_global<kUnitBytes>(
        out + (tile.row + row) * params.out_stride + tile.column + unit * kUnitBytes, words);
  }
}

// Stores the tile, by all threads together. `first_row`, `first_column`: of the warp in the tile.
// `memory`: of the block.
template <MmaGemmConfig kConfig>
__device__ void store_gated(const config::GemmParams& params, const config::Tile& tile,
                            int first_row, int first_column, const Sums<kConfig>& sums,
                            unsigned memory) {
  constexpr int kSubTiles = kConfig.sub_tiles(), kEights = kConfig.warp_columns() / 8;
  constexpr int kWarps = kConfig.column_warps, kRowsOfSubTile = kConfig.sub_tile_stride();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column_warp = first_column / kConfig.warp_columns();
  // The address of a word of each warp for the two rows of a sub-tile that the lane has a part of.
  const auto exchange = [&](int sub_tile) {
    const int pair = (first_row + sub_tile * kRowsOfSubTile) / 2 + lane / 4;
    return memory + kConfig.exchange_offset() + 4 * kWarps * pair;
  };
  const auto exists = [&](int sub_tile) {  // the same for all lanes
    return tile.row + first_row + sub_tile * kRowsOfSubTile < tile.row_end;
  };

  GatedRows<kConfig, kEights> rows[kSubTiles];
#pragma unroll
  for (int i = 0; i < kSubTiles; ++i) {
    if (!exists(i)) continue;
    rows[i].activate([&](int part, int half, int eight, int each) {
      return sums.of[i][part * kEights + eight][2 * half + each];
    });
    const unsigned amax = rows[i].amax();
    if (lane % 4 == 0) ptx::store_shared_word(exchange(i) + 4 * column_warp, amax);
  }
  __syncthreads();  // all have told, and have read the ring
#pragma unroll
  for (int i = 0; i < kSubTiles; ++i) {
    if (!exists(i)) continue;
    unsigned told[kWarps];
    ptx::load_shared_words(exchange(i), told);
    unsigned amax = told[0];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) amax = rows[i].larger(amax, told[warp]);
    const int row = first_row + i * kRowsOfSubTile + lane / 4;
    const unsigned target =
        memory + ((row * kMmaDepth + 16 * (row % 8) + 2 * (lane % 4)) ^ first_column);
    rows[i].encode(amax, target, [&](int half, float scale) {
      const int of_scale = tile.row + row + 8 * half;
      if (column_warp == 0 && of_scale < tile.row_end) {
        store_output_scale(params.out_scale, tile, of_scale, scale);
      }
    });
  }
  __syncthreads();
  store_codes<kConfig>(params, tile, memory);
}

}  // namespace octofold::mma
