// Gated outputs: how a stage holds the columns of gates and ups, and the store of what they make.
//
// A stage holds the rows of B that make the gates of a tile, and behind them those that make its
// ups, which begin in B where the gates' rows end. Each of the two has one scale in a stage.
#pragma once

#include "kernels/epilogue/gated.h"
#include "kernels/sm90/consumer.h"
#include "kernels/sm90/load_tma.h"
#include "kernels/sm90/store_tile.h"

namespace octofold::sm90 {

template <Sm90GemmConfig kConfig>
struct GatedColumns : TileColumns<kConfig> {
  static __device__ void load(const Sm90GemmParams& params, const Tile& tile, unsigned target,
                              unsigned full, int k, int rank) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      load_share<kConfig.tile_columns, kConfig.cluster_rows>(
          params.columns_map, target + part * kConfig.tile_columns * kStageDepth, full, k,
          tile.operand_column + part * tile.column_end, rank);
    }
  }
  static __device__ void load_scales(const Sm90GemmParams& params,
                                     const SharedMemory<kConfig>& smem) {
    sm90::load_scales<kConfig.column_scales_per_stage(), kScaleBlock>(
        params, smem, params.columns.scale,
        [](const Tile& tile) {
          return ScaleRange{tile.column, tile.column_end, tile.column < tile.column_end ? 2 : 0};
        },
        [&](int stage) { return smem.column_scales(stage); }, [](int scale) { return scale; });
  }
};

// The same as ColumnScales (scales.h). Sub-tiles of the gates have the first scale, those of the
// ups the second.
template <Sm90GemmConfig kConfig>
class GatedColumnScales {
 public:
  __device__ explicit GatedColumnScales(int) {}
  __device__ void read(const SharedMemory<kConfig>& smem, int stage) {
    const float2 pair = ptx::load_shared_pair(smem.column_scales(stage));
    values_[0] = pair.x;
    values_[1] = pair.y;
  }
  __device__ float at(int sub_tile, int) const {
    return values_[sub_tile / kConfig.row_sub_tiles()];
  }

 private:
  float values_[2];
};

// Store: the epilogue of gated outputs. A thread has gate and up of the same elements, side by side
// in two sub-tiles. What leaves are FP8 codes, through shared memory as any tile of D, and their
// scales, which threads write to global memory as they are worked out.
//
// SwiGLU takes 944 instructions for each thread and tile, about 1000 clocks of a warpgroup, where a
// stage of K takes 1024. Tried and lost: one warpgroup a stage or two ahead of the other, so that
// its epilogue lies under the other's products (2 to 4 % slower), and an ordered hand-over
// (docs/notes/gemm-sm90.md, "A lead in gated products").

// Writes the codes of the tile to shared memory as the box that TMA stores, and the scales of its
// rows to global memory.
template <Sm90GemmConfig kConfig>
struct WriteGated : WriteRows<kConfig> {
  static __device__ void write(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                               const Tile& tile, int, const Accumulators<kConfig>& sums) {
    static_assert(SharedMemory<kConfig>::kLayout.output_box_columns == 128);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row_of_thread = first_row_of_thread<kConfig>();
    const int first_row = tile.row + row_of_thread;
    // Nothing of this warp is stored.
    if (first_row - lane / 4 >= tile.row_end || tile.column >= tile.column_end) return;

    GatedRows<kConfig, kConfig.tile_columns / 8> rows;
    rows.activate(
        [&](int part, int half, int eight, int i) { return sums[part][4 * eight + 2 * half + i]; });
    const unsigned target =
        smem.output() + row_of_thread * 128 + 16 * (row_of_thread % 8) + 2 * (lane % 4);
    rows.encode(rows.amax(), target, [&](int half, float scale) {
      const int row = first_row + 8 * half;
      if (row < tile.row_end) store_output_scale(params.out_scale, tile, row, scale);
    });
  }
};

}  // namespace octofold::sm90
