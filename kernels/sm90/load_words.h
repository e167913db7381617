// Load: operands whose rows TMA cannot address, but which consist of whole words. Six warps of two
// producer warpgroups copy them asynchronously, a word of a row to each lane, straight to where the
// tensor core wants them.
//
// Predicted near TMA's speed; it takes about twice as long: 8 ns for each row of a stage. What
// binds was not found: neither bytes (2 TB/s from L2) nor instructions (docs/notes/gemm-sm90.md).
#pragma once

#include "kernels/ptx/tma.h"
#include "kernels/sm90/load_tma.h"

namespace octofold::sm90 {

// This warp's share of the rows of one operand in a stage. Values beyond K become 0; rows beyond
// the operand are left as they are, as their products are not stored.
template <int kExtent, int kWarps>
__device__ void copy_words(const config::OperandParams& operand, RowRange range, int k, int k_end,
                           unsigned target, int warp) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int existing = min(kExtent, range.end - range.first);
  const int bytes = min(max(k_end - k - 4 * lane, 0), 4);
  // If there is nothing to copy, the address is still one of the row.
  const unsigned char* source =
      operand.data + (range.first + warp) * operand.stride + k + (bytes == 0 ? 0 : 4 * lane);
#pragma unroll 4
  for (int row = warp; row < existing; row += kWarps) {
    ptx::copy_word_async(target + row * kStageDepth + 16 * (lane / 4 ^ row % 8) + lane % 4 * 4,
                         source, static_cast<unsigned>(bytes));
    source += kWarps * operand.stride;
  }
}

// Number of a producer warp among those that copy operands: all but warps 2 and 3, which copy
// scales.
__device__ inline int copy_warp(int producer_warp) {
  return producer_warp < 2 ? producer_warp : producer_warp - 2;
}

template <Sm90GemmConfig kConfig>
struct LoadWords : LoadDefaults<kConfig> {
  static constexpr int kWarps = kConfig.copy_warps();
  static constexpr unsigned kArrivals = 32 * kWarps;

  static __device__ void run(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                             int warp) {
    const int place = copy_warp(warp);
    for_each_stage(params, smem, [&](int stage, const Tile& tile, int k) {
      copy_words<kConfig.tile_rows, kWarps>(params.rows, rows_of(tile), k, tile.k_end,
                                            smem.rows(stage), place);
      copy_words<kConfig.tile_columns, kWarps>(params.columns, columns_of(tile), k, tile.k_end,
                                               smem.columns(stage), place);
      ptx::mbarrier_arrive_after_copies(smem.full(stage));
    });
  }
  // The words were written by threads that did not wait for them.
  static __device__ void fence() { ptx::fence_proxy_async(); }
};

}  // namespace octofold::sm90
