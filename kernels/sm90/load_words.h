// Operands whose rows TMA cannot address, but which consist of whole words: these go straight to
// where the tensor core wants them, asynchronously, a word of a row to each lane.
#pragma once

#include "kernels/sm90/load.h"

namespace octofold::sm90 {

// Of one operand, this warp's share of the rows of a stage. What lies beyond K becomes 0; what lies
// beyond the operand is of no account.
template <int kExtent, int kWarps>
__device__ void copy_words(const config::OperandParams& operand, RowRange range, int k, int k_end,
                           unsigned target, int warp) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int existing = min(kExtent, range.end - range.first);
  const int bytes = min(max(k_end - k - 4 * lane, 0), 4);
  // Where there is nothing to copy the address is still one of the row.
  const unsigned char* source =
      operand.data + (range.first + warp) * operand.stride + k + (bytes == 0 ? 0 : 4 * lane);
#pragma unroll 4
  for (int row = warp; row < existing; row += kWarps) {
    ptx::copy_word_async(target + row * kStageDepth + 16 * (lane / 4 ^ row % 8) + lane % 4 * 4,
                         source, static_cast<unsigned>(bytes));
    source += kWarps * operand.stride;
  }
}

// `warp`: of those that copy.
template <Sm90GemmConfig kConfig>
__device__ void load_operands_by_words(const Sm90GemmParams& params,
                                       const SharedMemory<kConfig>& smem, int warp) {
  constexpr int kWarps = SharedMemory<kConfig>::kCopyWarps;
  for_each_stage(params, smem, [&](int stage, const Tile& tile, int k) {
    copy_words<kConfig.tile_rows, kWarps>(params.rows, rows_of(tile), k, tile.k_end,
                                          smem.rows(stage), warp);
    copy_words<kConfig.tile_columns, kWarps>(params.columns, columns_of(tile), k, tile.k_end,
                                             smem.columns(stage), warp);
    ptx::mbarrier_arrive_after_copies(smem.full(stage));
  });
}

}  // namespace octofold::sm90
