// Scales as in scales.h for the other granularities of either side: 128x128 for the rows, 1x128 for
// the columns, and those that are constant along K.
#pragma once

#include "kernels/sm90/scales.h"

namespace octofold::sm90 {

// Scales that are constant along K.
class NoScales {
 public:
  __device__ explicit NoScales(int, int = 0) {}
  __device__ void begin_tile(const Tile&) {}
  template <typename Memory>
  __device__ void read(const Memory&, int) {}
  __device__ float at(int, int) const { return 1.0f; }
};

template <Sm90GemmConfig kConfig, Granularity kScales>
  requires(!varies_along_k(kScales))
class RowScales<kConfig, kScales> : public NoScales {
 public:
  using NoScales::NoScales;
};
template <Sm90GemmConfig kConfig, Granularity kScales>
  requires(!varies_along_k(kScales))
class ColumnScales<kConfig, kScales> : public NoScales {
 public:
  using NoScales::NoScales;
};

template <Sm90GemmConfig kConfig>
class RowScales<kConfig, Granularity::kBlock128x128> {
 public:
  __device__ RowScales(int first_row, int) : first_row_(first_row) {}

  __device__ void begin_tile(const Tile& tile) {
    if (kMayBeginWithin) offset_ = scaled_rows_of<kConfig>(tile).first % kScaleBlock;
  }

  // An early wait reads before the tile begins: all blocks that the tile may touch.
  __device__ void read(const SharedMemory<kConfig>& smem, int stage) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int block =
          kMayBeginWithin ? i : (first_row_ + kConfig.sub_tile_stride() * i) / kScaleBlock;
      values_[i] = ptx::load_shared(smem.row_scales(stage) + 4 * block);
    }
  }

  __device__ float at(int sub_tile, int) const {
    if constexpr (!kMayBeginWithin) return values_[sub_tile];
    const int block = (offset_ + first_row_ + kConfig.sub_tile_stride() * sub_tile) / kScaleBlock;
    return block == 0 ? values_[0] : values_[1];
  }

 private:
  // A tile of 64 rows lies in one block, one of whole blocks begins with a block.
  static constexpr bool kMayBeginWithin =
      kConfig.tile_rows > 64 && kConfig.tile_rows % kScaleBlock != 0;
  static constexpr int kValues =
      kMayBeginWithin ? config::scales_per_stage(Granularity::kBlock128x128, kConfig.tile_rows)
                      : kConfig.sub_tiles();
  static_assert(!kMayBeginWithin || kValues == 2);

  int first_row_;
  int offset_ = 0;  // of the tile in its first block
  float values_[kValues];
};

template <Sm90GemmConfig kConfig>
class ColumnScales<kConfig, Granularity::kBlock1x128> {
 public:
  // `first_column`: of the thread's first pair in the tile.
  __device__ explicit ColumnScales(int first_column)
      : first_(4 * config::ColumnScaleOrder(kConfig.tile_columns).place(first_column)) {}

  __device__ void read(const SharedMemory<kConfig>& smem, int stage) {
    const unsigned first = smem.column_scales(stage) + first_;
    if constexpr (kCount == 2) {
      const float2 pair = ptx::load_shared_pair(first);
      values_[0] = pair.x, values_[1] = pair.y;
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 four = ptx::load_shared_four(first + 4 * i);
        values_[i] = four.x, values_[i + 1] = four.y;
        values_[i + 2] = four.z, values_[i + 3] = four.w;
      }
    }
  }

  __device__ float at(int, int i) const { return values_[i / 4 * 2 + i % 2]; }

 private:
  static constexpr int kCount = kConfig.tile_columns / 4;

  int first_;  // the thread's, in bytes
  float values_[kCount];
};

}  // namespace octofold::sm90
