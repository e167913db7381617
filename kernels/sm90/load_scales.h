// Scales that vary along K, into the stages of the ring: a producer warp for each operand copies
// them word by word, so that any layout of the scale tensor will do. One in which neighbouring rows
// are neighbours in memory is read in full lines.
//
// A warp has about as long for a stage as the tensor cores have, so that only the copies themselves
// are left in its loop: addresses worked out there cost 33 % (docs/kernels/gemm-tilings.md).
#pragma once

#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/sm90/pipeline.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

// Scales of an operand that a tile takes: that of row `first` and of every `distance`-th row behind
// it, `count` in all, which may be more than the tile holds.
struct ScaleRange {
  int first;
  int distance;
  int count;
};

// The scales of some rows, of which kRows share one of a stage.
template <int kRows>
__device__ ScaleRange scales_of(const RowRange& rows) {
  static_assert(kRows > 0, "a granularity that varies along K has scales in each stage");
  const int first = rows.first / kRows;
  return {first * kRows, kRows, (rows.end - 1) / kRows + 1 - first};
}

// Threads of a warp that copies so many scales; all of them arrive at `full`.
constexpr unsigned scale_threads(int units) { return units < 32 ? units : 32; }

// One warp. A stage holds kUnits scales, in memory kRows rows share one. `scales_of(tile)`: the
// scales of a tile; `target(stage)`: where a stage has them; `place(unit)`: their order there.
// Nothing is copied beyond the last scale, as the products there are not stored.
template <int kUnits, int kRows, Sm90GemmConfig kConfig, typename ScalesOf, typename Target,
          typename Place>
__device__ void load_scales(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                            const config::ScaleParams& scale, ScalesOf&& scales_of, Target&& target,
                            Place&& place) {
  constexpr int kUnitsOfLane = (kUnits + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= kUnits) return;
  RingPosition<kConfig.stages> position;
  AwaitRows<kConfig> rows;
  for (auto walk = walk_of<kConfig>(params); walk.has_tile(); walk.advance()) {
    const Tile tile = walk.tile();
    rows.await(params, tile);
    const ScaleRange range = scales_of(tile);
    const int first = range.first + lane * range.distance;
    const int behind = min(range.count, kUnits) - 1 - lane;  // units of the tile behind this one
    const float* sources[kUnitsOfLane];
#pragma unroll
    for (int i = 0; i < kUnitsOfLane; ++i) {
      sources[i] = scale.data + tile.group * scale.group_stride +
                   (first + 32 * i * range.distance) / kRows * scale.row_stride +
                   tile.k_begin / kScaleBlock * scale.k_stride;
    }
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      ptx::mbarrier_wait(smem.empty(position.stage), position.parity ^ 1);
      const unsigned destination = target(position.stage) + 4 * place(lane);
#pragma unroll
      for (int i = 0; i < kUnitsOfLane; ++i) {
        if (32 * i <= behind) ptx::copy_word_async(destination + 4 * place(32 * i), sources[i]);
        sources[i] += scale.k_stride;
      }
      ptx::mbarrier_arrive_after_copies(smem.full(position.stage));
      position.advance();
    }
  }
}

// A warp of the rows.
template <Sm90GemmConfig kConfig>
struct RowScalesOfTile {
  static constexpr int kShare = config::rows_per_scale(kConfig.row_scales());
  static constexpr int kCount = config::scales_per_stage(kConfig.row_scales(), kConfig.tile_rows);
  static constexpr unsigned kScaleArrivals = scale_threads(kCount);

  static __device__ void load_scales(const Sm90GemmParams& params,
                                     const SharedMemory<kConfig>& smem) {
    if constexpr (kCount > 0) {
      sm90::load_scales<kCount, config::rows_per_scale(kConfig.rows().scales)>(
          params, smem, params.rows.scale,
          [](const Tile& tile) { return scales_of<kShare>(scaled_rows_of<kConfig>(tile)); },
          [&](int stage) { return smem.row_scales(stage); }, [](int row) { return row; });
    }
  }
};

// A warp of the columns, where each scale stands in the order in which consumers read them.
template <Sm90GemmConfig kConfig>
struct ColumnScalesOfTile {
  static constexpr int kCount = kConfig.column_scales_per_stage(), kShare = kConfig.column_share();
  static constexpr unsigned kScaleArrivals = scale_threads(kCount);

  static __device__ void load_scales(const Sm90GemmParams& params,
                                     const SharedMemory<kConfig>& smem) {
    if constexpr (kCount > 0) {
      sm90::load_scales<kCount, config::rows_per_scale(kConfig.columns().scales)>(
          params, smem, params.columns.scale,
          [](const Tile& tile) { return scales_of<kShare>(scaled_columns_of<kConfig>(tile)); },
          [&](int stage) { return smem.column_scales(stage); },
          [](int column) {
            constexpr config::ColumnScaleOrder kOrder(kConfig.tile_columns);
            return kShare == 1 ? kOrder.place(column) : column;
          });
    }
  }
};

}  // namespace octofold::sm90
