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
  // Opaque, or they would be summed anew for each stage.
  __device__ RowScales(int first_row, int row_of_thread)
      : row_(static_cast<int>(ptx::opaque(static_cast<unsigned>(first_row + row_of_thread)))) {}

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

// The scales of the columns, likewise; those of gated outputs are in gated.h.
template <Sm90GemmConfig kConfig, Granularity kScales = kConfig.column_scales()>
class ColumnScales;

template <Sm90GemmConfig kConfig>
class ColumnScales<kConfig, Granularity::kBlock128x128> {
 public:
  __device__ explicit ColumnScales(int) {}

  __device__ void read(const SharedMemory<kConfig>& smem, int stage) {
    const unsigned first = smem.column_scales(stage);
    if constexpr (kCount == 1) {
      values_[0] = ptx::load_shared(first);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 four = ptx::load_shared_four(first + 4 * i);
        values_[i] = four.x, values_[i + 1] = four.y;
        values_[i + 2] = four.z, values_[i + 3] = four.w;
      }
    }
  }

  __device__ float at(int, int i) const { return values_[2 * i / kConfig.column_share()]; }

 private:
  static constexpr int kCount = kConfig.column_scales_per_stage();

  float values_[config::round_up(kCount, 4)];
};

}  // namespace octofold::sm90
