// Store: the epilogue of gated outputs. A thread has gate and up of the same elements, side by side
// in two sub-tiles. What leaves are FP8 codes, through shared memory as any tile of D, and their
// scales, which threads write to global memory as they are worked out.
//
// SwiGLU takes 944 instructions for each thread and tile, about 1000 clocks of a warpgroup, where a
// stage of K takes 1024. Tried and lost: one warpgroup a stage or two ahead of the other, so that
// its epilogue lies under the other's products (2 to 4 % slower), and an ordered hand-over
// (docs/notes/gemm-sm90.md, "A lead in gated products").
#pragma once

#include "kernels/epilogue/gated.h"
#include "kernels/sm90/consumer.h"
#include "kernels/sm90/store_tile.h"

namespace octofold::sm90 {

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
