// Scales that vary along K, as a consumer thread applies them to the partial sums of one stage.
//
// Accumulator i of a sub-tile (64 rows of a warpgroup) belongs to row 8 · (i / 2 % 2), counted from
// the thread's first row, and to column 8 · (i / 4) + i % 2, counted from the thread's first pair
// of columns (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk32", D). Scales that are
// constant along K are 1 here: they wait for the finished sum (kernels/epilogue).
#pragma once

#include "kernels/ptx/shared_memory.h"
#include "kernels/sm90/pipeline.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

// The scales of the rows: begin_tile() before a tile's first stage, read() for each stage, then
// at().
template <Sm90GemmConfig kConfig, Granularity kScales = kConfig.row_scales()>
class RowScales;

template <Sm90GemmConfig kConfig>
class RowScales<kConfig, Granularity::kBlock1x128> {
 public:
  // `first_row`: of the warpgroup in the tile; `row_of_thread`: of the thread in a sub-tile.
  __device__ RowScales(int first_row, int row_of_thread) : row_(first_row + row_of_thread) {}

  __device__ void begin_tile(const Tile&) {}

  __device__ void read(const SharedMemory<kConfig>& smem, int stage) {
#pragma unroll
    for (int sub_tile = 0; sub_tile < kConfig.row_sub_tiles(); ++sub_tile) {
      const unsigned rows =
          smem.row_scales(stage) + 4 * (row_ + kConfig.sub_tile_stride() * sub_tile);
      values_[sub_tile][0] = ptx::load_shared(rows);
      values_[sub_tile][1] = ptx::load_shared(rows + 4 * 8);
    }
  }

  __device__ float at(int sub_tile, int i) const {
    return values_[sub_tile % kConfig.row_sub_tiles()][i / 2 % 2];
  }

 private:
  int row_;
  float values_[kConfig.row_sub_tiles()][2];
};

// The scales of the columns, likewise; those of gated outputs are in gated_columns.h.
template <Sm90GemmConfig kConfig, Granularity kScales = kConfig.column_scales()>
class ColumnScales;

template <Sm90GemmConfig kConfig>
class ColumnScales<kConfig, Granularity::kBlock128x128> {
 public:
  __device__ explicit ColumnScales(int) {}

  __device__ void begin_tile(const Tile& tile) {
    if (kTwo) split_ = kScaleBlock - scaled_columns_of<kConfig>(tile).first % kScaleBlock;
  }

  __device__ void read(const SharedMemory<kConfig>& smem, int stage) {
    const float2 pair = ptx::load_shared_pair(smem.column_scales(stage));
    values_[0] = pair.x;
    values_[1] = pair.y;
  }

  // A strip of columns lies in one block, wherever the tile begins.
  __device__ float at(int, int i) const {
    const bool second = kTwo && 2 * i / kStrip * kStrip >= split_;
    return second ? values_[1] : values_[0];
  }

 private:
  static constexpr bool kTwo =
      config::scales_per_stage(Granularity::kBlock128x128, kConfig.tile_columns) == 2;
  static constexpr int kStrip = config::common_divisor(kConfig.tile_columns, kScaleBlock);

  int split_ = 0;  // the tile's first column in the second block
  float values_[2];
};

}  // namespace octofold::sm90
