// Rows in groups, which may end anywhere: how the rows of a tile are loaded, and how D leaves.
//
// Load: the last tile of a group comes in boxes of one sub-tile, of which only those with rows of
// the group are loaded.
#pragma once

#include "kernels/sm90/load_tma.h"
#include "kernels/sm90/store_tile.h"

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

// Boxes of D, and of C, where D's rows are in groups: the last box of a group must not write into
// the next one.
//
// TMA leaves out what lies outside of a tensor, but it knows of no group. So the tensor map says
// that D has three dimensions: columns, and two that both step by one row of D. Call them the inner
// and the outer row. The inner one has kBoxRows places, and TMA stores nothing beyond them. A box
// of which e rows belong to the group begins at inner row kBoxRows - e: its first e rows lie
// inside, the others outside. The outer row moves the box back to where it belongs. It is counted
// from kBoxRows rows before D's first row, where the map says that D begins.

template <Sm90GemmConfig kConfig>
struct GroupBoxes {
  static constexpr auto kLayout = SharedMemory<kConfig>::kLayout;
  static constexpr int kBoxRows = kLayout.output_box_rows;

  static __device__ void send(const Sm90GemmParams& params, unsigned box, int column, int row,
                              int row_end) {
    const int existing = min(row_end - row, kBoxRows);
    if (existing <= 0) return;
    send_to<kConfig.adds_in_place>(params.out_map, box, column, kBoxRows - existing,
                                   row + existing);
  }

  static __device__ void fetch_c(const Sm90GemmParams& params, unsigned box, unsigned full,
                                 int column, const Tile& tile) {
    const int existing = min(tile.row_end - tile.row, kBoxRows);
    if (existing <= 0) return ptx::mbarrier_arrive(full);
    ptx::mbarrier_arrive_expect_bytes(full, kLayout.output_box_bytes);
    ptx::tma_load(box, &params.c_map, full, column, kBoxRows - existing, tile.row + existing);
  }
};

}  // namespace octofold::sm90
