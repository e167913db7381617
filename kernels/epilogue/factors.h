// Scales that are constant along K, for the columns that a warp finishes
// and for a thread's rows. All are read before the first is needed, so that a tile waits for memory
// once. (With each pair of columns read by itself, the epilogue of a tile took longer than 512 of
// K.)
#pragma once

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/gemm_params.h"

namespace octofold {

using config::GemmConfiguration;
using config::GemmParams;
using config::Tile;

// The scale of a row of an operand, of a whole tensor, or of a group's own tensor.
__device__ inline float scale_of_group(const config::ScaleParams& scale, const Tile& tile,
                                       int row = 0) {
  return scale.data[tile.group * scale.group_stride + row * scale.row_stride];
}

template <GemmConfiguration auto kConfig>
inline constexpr bool kColumnsHaveFactors = kConfig.columns().scales == Granularity::kChannel;

template <GemmConfiguration auto kConfig>
inline constexpr bool kRowsHaveFactors =
    !varies_along_k(kConfig.rows().scales) || kConfig.columns().scales == Granularity::kTensor;

// The factors of so many columns of a tile. A lane reads those of every 32nd, and hands them to the
// lanes that finish these: all lanes of the warp ask together.
template <GemmConfiguration auto kConfig, int kColumns = kConfig.tile_columns,
          bool kExist = kColumnsHaveFactors<kConfig>>
class ColumnFactors {
 public:
  // `begin`: where they begin in the tile.
  __device__ ColumnFactors(const GemmParams& params, const Tile& tile, int begin = 0) {
    const int first = tile.column + begin + static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int column = first + 32 * i;
      values_[i] = column < tile.column_end ? read(params, tile, column) : 1.0f;
    }
  }

  // The factor of one of the lane's two columns among the eight that begin `first` columns behind
  // the first one.
  __device__ float at(int first, int i) const {
    const int place = first + 2 * (static_cast<int>(threadIdx.x) % 4) + i;
    return __shfl_sync(0xFFFFFFFFu, values_[first / 32], place % 32);
  }

 private:
  static constexpr int kCount = config::ceil_divide(kColumns, 32);

  static __device__ float read(const GemmParams& params, const Tile& tile, int column) {
    const int of_operand = column + (tile.operand_column - tile.column);
    const int of_group = kConfig.swapped ? of_operand : column;  // A's, or B's
    return scale_of_group(params.columns.scale, tile, of_group);
  }

  float values_[kCount];
};

template <GemmConfiguration auto kConfig, int kColumns>
struct ColumnFactors<kConfig, kColumns, false> {
  __device__ ColumnFactors(const GemmParams&, const Tile&, int = 0) {}
  __device__ float at(int, int) const { return 1.0f; }
};

// The factors of a thread's rows, times the scales that all of D has.
template <GemmConfiguration auto kConfig, bool kExist = kRowsHaveFactors<kConfig>>
class RowFactors {
 public:
  // `first_row`: the thread's in sub-tile 0.
  __device__ RowFactors(const GemmParams& params, const Tile& tile, int first_row) {
#pragma unroll
    for (int i = 0; i < 2 * kConfig.sub_tiles(); ++i) {
      values_[i / 2][i % 2] =
          read(params, tile, first_row + kConfig.sub_tile_stride() * (i / 2) + 8 * (i % 2));
    }
  }

  // `half`: the upper (0) or the lower one of the thread's two rows of a sub-tile.
  __device__ float at(int sub_tile, int half) const { return values_[sub_tile][half]; }

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
    if constexpr (kConfig.columns().scales == Granularity::kTensor) {
      factor *= scale_of_group(params.columns.scale, tile);
    }
    return factor;
  }

  float values_[kConfig.sub_tiles()][2];
};

template <GemmConfiguration auto kConfig>
struct RowFactors<kConfig, false> {
  __device__ RowFactors(const GemmParams&, const Tile&, int) {}
  __device__ float at(int, int) const { return 1.0f; }
};

}  // namespace octofold
