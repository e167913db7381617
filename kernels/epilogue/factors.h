// Scales that are constant along K, and factors of channels: of the columns that a warp finishes,
// and of a thread's rows. All are read before the first is needed, so that a tile waits for memory
// once. (Each pair of columns read by itself, the epilogue of a tile took longer than 512 of K.)
#pragma once

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/channel_scale.h"
#include "kernels/shared/gemm_params.h"

namespace octofold {

using config::GemmConfiguration;
using config::GemmParams;
using config::Tile;

// A scale that an operand's rows have each, or a tensor, or of tensors each group's.
__device__ inline float scale_of_group(const config::ScaleParams& scale, const Tile& tile,
                                       int row = 0) {
  return scale.data[tile.group * scale.group_stride + row * scale.row_stride];
}

// Of so many columns of a tile. A lane reads those of every 32nd, and hands them to the lanes that
// finish these: all lanes of the warp ask together.
template <GemmConfiguration auto kConfig, int kColumns = kConfig.tile_columns>
class ColumnFactors {
 public:
  static constexpr bool kExist =
      kConfig.columns().scales == Granularity::kChannel || kConfig.columns_have_factors();

  // `begin`: where they begin in the tile.
  __device__ ColumnFactors(const GemmParams& params, const Tile& tile, int begin = 0) {
    if constexpr (kExist) {
      const int first = tile.column + begin + static_cast<int>(threadIdx.x) % 32;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int column = first + 32 * i;
        values_[i] = column < tile.column_end ? read(params, tile, column) : 1.0f;
      }
    }
  }

  // Of one of the lane's two columns of those eight that begin so far behind the first.
  __device__ float at(int first, int i) const {
    if constexpr (!kExist) return 1.0f;
    const int place = first + 2 * (static_cast<int>(threadIdx.x) % 4) + i;
    return __shfl_sync(0xFFFFFFFFu, values_[first / 32], place % 32);
  }

 private:
  static constexpr int kCount = config::ceil_divide(kColumns, 32);

  static __device__ float read(const GemmParams& params, const Tile& tile, int column) {
    const int of_operand = column + (tile.operand_column - tile.column);
    if constexpr (kConfig.columns_have_factors()) {
      return config::channel_factor(params.channel_scale[of_operand]);
    } else {
      const int of_group = kConfig.swapped ? of_operand : column;  // A's, or B's
      return scale_of_group(params.columns.scale, tile, of_group);
    }
  }

  float values_[kExist ? kCount : 1];
};

// With the scales that all of D has.
template <GemmConfiguration auto kConfig>
class RowFactors {
 public:
  static constexpr bool kExist = !varies_along_k(kConfig.rows().scales) ||
                                 kConfig.rows_have_factors() ||
                                 kConfig.columns().scales == Granularity::kTensor;

  // `first_row`: the thread's in sub-tile 0.
  __device__ RowFactors(const GemmParams& params, const Tile& tile, int first_row) {
    if constexpr (kExist) {
#pragma unroll
      for (int i = 0; i < 2 * kConfig.sub_tiles(); ++i) {
        values_[i / 2][i % 2] =
            read(params, tile, first_row + kConfig.kSubTileStride * (i / 2) + 8 * (i % 2));
      }
    }
  }

  // `half`: of the thread's two rows of a sub-tile the upper or the lower.
  __device__ float at(int sub_tile, int half) const {
    if constexpr (!kExist) return 1.0f;
    return values_[sub_tile][half];
  }

 private:
  // Nothing outside of D is read.
  static __device__ float read(const GemmParams& params, const Tile& tile, int row) {
    const int of_operand = row + (tile.operand_row - tile.row);
    const bool exists = row < tile.row_end;
    float factor = 1.0f;
    if constexpr (kConfig.rows().scales == Granularity::kTensor) {
      factor = scale_of_group(params.rows.scale, tile);
    }
    if constexpr (kConfig.rows().scales == Granularity::kChannel) {
      const int of_group = kConfig.swapped ? row : of_operand;  // B's, or A's
      if (exists) factor = scale_of_group(params.rows.scale, tile, of_group);
    }
    if constexpr (kConfig.rows_have_factors()) {
      if (exists) factor = config::channel_factor(params.channel_scale[of_operand]);
    }
    if constexpr (kConfig.columns().scales == Granularity::kTensor) {
      factor *= scale_of_group(params.columns.scale, tile);
    }
    return factor;
  }

  float values_[kExist ? kConfig.sub_tiles() : 1][2];
};

}  // namespace octofold
