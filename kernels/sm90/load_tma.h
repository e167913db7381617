// Load: operands by TMA. One producer thread asks for the boxes of each stage.
//
// A Load is how operands come to the ring: by TMA here, by threads in load_unaligned.h, and
// with a cast of one operand on the way in load_dynamic.h.
//
//   kArrivals                  at a stage's `full`, for its operands
//   prefetch(params)           one thread, when the kernel starts
//   run(params, smem, warp)    each producer warp that copies no scales; `warp`: of the producers
//   kCasts, cast(params, smem) whether the second producer warpgroup casts, and its whole way
//   fence()                    consumers, after waiting for a stage
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90/load_scales.h"
#include "kernels/sm90/pipeline.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

template <Sm90GemmConfig kConfig>
struct LoadDefaults {
  static constexpr bool kCasts = false;
  static __device__ void cast(const Sm90GemmParams&, const SharedMemory<kConfig>&) {}
  static __device__ void prefetch(const Sm90GemmParams&) {}
  static __device__ void fence() {}
};

// `Rows` and `Columns`: what a stage holds of either operand, and in which boxes it comes.
template <Sm90GemmConfig kConfig, typename Rows, typename Columns>
struct LoadByTma : LoadDefaults<kConfig> {
  static constexpr unsigned kArrivals = 1;

  static __device__ void prefetch(const Sm90GemmParams& params) {
    ptx::prefetch_tensor_map(&params.rows_map);
    ptx::prefetch_tensor_map(&params.last_rows_map);
    Columns::prefetch(params);
  }

  static __device__ void run(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                             int warp) {
    if (warp != 0 || !ptx::elect_one()) return;
    const int rank = kConfig.multicast_blocks() > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
    for_each_stage(params, smem, [&](int stage, const Tile& tile, int k) {
      const unsigned full = smem.full(stage);
      const Rows rows(params, tile);
      ptx::mbarrier_arrive_expect_bytes(full, rows.bytes() + Columns::kBytes);
      rows.load(smem.rows(stage), full, k, rank);
      Columns::load(params, tile, smem.columns(stage), full, k, rank);
    });
  }
};

// One box, from row `row` of the operand on, to all blocks of the cluster that share it.
template <int kSharers>
__device__ void load_box(const config::TensorMap& map, unsigned target, unsigned full, int k,
                         int row) {
  if constexpr (kSharers > 1) {
    ptx::tma_load_multicast(target, &map, full, k, row, (1 << kSharers) - 1);
  } else {
    ptx::tma_load(target, &map, full, k, row);
  }
}

// All rows of an operand that a stage holds, from `first` on: this block's share of them.
template <int kRows, int kSharers>
__device__ void load_share(const config::TensorMap& map, unsigned target, unsigned full, int k,
                           int first, int rank) {
  const int row = kSharers > 1 ? rank * (kRows / kSharers) : 0;
  load_box<kSharers>(map, target + row * kStageDepth, full, k, first + row);
}

// The rows of a tile. TMA takes its time over rows that do not exist, so those of the last tile
// come in a box of their own.
template <Sm90GemmConfig kConfig>
class TileRows {
 public:
  __device__ TileRows(const Sm90GemmParams& params, const Tile& tile)
      : params_(params),
        tile_(tile),
        is_last_(params.last_rows != 0 && tile.row_end - tile.row < kConfig.tile_rows) {}

  __device__ unsigned bytes() const {
    return is_last_ ? params_.last_rows * kStageDepth : SharedMemory<kConfig>::kLayout.rows_bytes;
  }
  __device__ void load(unsigned target, unsigned full, int k, int rank) const {
    constexpr int kSharers = kConfig.cluster_columns;  // which have no box for the last tile
    const bool by_last = kSharers == 1 && is_last_;
    load_share<kConfig.tile_rows, kSharers>(by_last ? params_.last_rows_map : params_.rows_map,
                                            target, full, k, tile_.operand_row, rank);
  }

 private:
  const Sm90GemmParams& params_;
  const Tile& tile_;
  bool is_last_;
};

// The columns of a tile, and their scales.
template <Sm90GemmConfig kConfig>
struct TileColumns : ColumnScalesOfTile<kConfig> {
  static constexpr unsigned kBytes = SharedMemory<kConfig>::kLayout.columns_bytes;

  static __device__ void prefetch(const Sm90GemmParams& params) {
    ptx::prefetch_tensor_map(&params.columns_map);
  }
  static __device__ void load(const Sm90GemmParams& params, const Tile& tile, unsigned target,
                              unsigned full, int k, int rank) {
    load_share<kConfig.tile_columns, kConfig.cluster_rows>(params.columns_map, target, full, k,
                                                           tile.operand_column, rank);
  }
};

}  // namespace octofold::sm90
