// The rows of a tile where A's rows are in groups, which may end anywhere: the last tile of a group
// comes in boxes of one sub-tile, of which only those with rows of the group are loaded.
#pragma once

#include "kernels/sm90/load_tma.h"

namespace octofold::sm90 {

template <Sm90GemmConfig kConfig>
class GroupRows {
 public:
  __device__ GroupRows(const Sm90GemmParams& params, const Tile& tile)
      : params_(params),
        tile_(tile),
        sub_tiles_(config::sub_tiles_of(tile.row_end - tile.row)),
        is_last_(params.last_rows != 0 && tile.row_end - tile.row < kConfig.tile_rows) {}

  __device__ unsigned bytes() const {
    return is_last_ ? sub_tiles_ * kRows * kStageDepth : SharedMemory<kConfig>::kLayout.rows_bytes;
  }
  __device__ void load(unsigned target, unsigned full, int k, int rank) const {
    if (is_last_) return load_sub_tiles(target, full, k, rank);
    load_share<kConfig.tile_rows, kSharers>(params_.rows_map, target, full, k, tile_.operand_row,
                                            rank);
  }

 private:
  static constexpr int kRows = config::kSubTileRows, kSharers = kConfig.cluster_columns;
  static constexpr int kShare = kConfig.tile_rows / kRows / kSharers;

  // Blocks that share the rows each load the sub-tiles of their share.
  __device__ void load_sub_tiles(unsigned target, unsigned full, int k, int rank) const {
    const int begin = kSharers > 1 ? rank * kShare : 0;
#pragma unroll 1
    for (int i = begin; i < min(begin + kShare, sub_tiles_); ++i) {
      load_box<kSharers>(params_.last_rows_map, target + i * kRows * kStageDepth, full, k,
                         tile_.operand_row + i * kRows);
    }
  }

  const Sm90GemmParams& params_;
  const Tile& tile_;
  int sub_tiles_;
  bool is_last_;
};

}  // namespace octofold::sm90
