// The columns of a gated output: a stage holds the rows of B that make the gates of a tile, and
// behind them those that make its ups, which begin in B where the gates' rows end. Each of the two
// has one scale in a stage.
#pragma once

#include "kernels/sm90/load_tma.h"

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

}  // namespace octofold::sm90
