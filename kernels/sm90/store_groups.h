// Boxes of D, and of C, where D's rows are in groups: the last box of a group must not write into
// the next one.
//
// TMA leaves out what lies outside of a tensor, but it knows of no group. So the tensor map says
// that D has three dimensions: columns, and two that both step by one row of D. Call them the inner
// and the outer row. The inner one has kBoxRows places, and TMA stores nothing beyond them. A box
// of which e rows belong to the group begins at inner row kBoxRows - e: its first e rows lie
// inside, the others outside. The outer row moves the box back to where it belongs. It is counted
// from kBoxRows rows before D's first row, where the map says that D begins.
#pragma once

#include "kernels/sm90/store_tile.h"

namespace octofold::sm90 {

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
