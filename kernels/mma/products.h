// The products of a warp over a stage of K.
#pragma once

#include "kernels/mma/config/config.h"
#include "kernels/mma/load.h"
#include "kernels/ptx/mma.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::mma {

// The sums of a thread: sub-tiles of 16 rows, eights of columns (of a gated product the gates',
// then the ups'), and of each four sums, of two columns of two rows (kernels/ptx/mma.h, "sums").
template <MmaGemmConfig kConfig>
struct Sums {
  float of[kConfig.sub_tiles()][kConfig.eights()][4];

  __device__ void clear() {
#pragma unroll
    for (auto& sub_tile : of) {
#pragma unroll
      for (auto& eight : sub_tile) {
#pragma unroll
        for (float& sum : eight) sum = 0.0f;
      }
    }
  }
};

template <MmaGemmConfig kConfig>
class WarpProducts {
  static constexpr int kSubTiles = kConfig.sub_tiles();
  static constexpr int kEights = kConfig.eights();
  static constexpr int kInstructionDepth = 32;
  static constexpr int kUnitsOfInstruction = kInstructionDepth / kUnitBytes;
  static constexpr bool kRowsScaled = kConfig.row_scales() > 0;
  static constexpr bool kColumnsScaled = kConfig.column_scales() > 0;

 public:
  // `first_row`, `first_column`: of the warp in the tile.
  __device__ WarpProducts(int first_row, int first_column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Matrices of ldmatrix: of A the upper and the lower eight rows, then both again 16 bytes on;
    // of B 16 bytes and the next 16, then both again of the next eight columns.
    const int row = first_row + lane % 16;
    const int column = first_column + lane / 16 * 8 + lane % 8;
    rows_ = place_of(row, lane / 16);
    columns_ = kConfig.tile_rows * kMmaDepth + place_of(column, lane / 8 % 2);
    row_scales_ = kConfig.scales_offset() + 4 * (first_row + lane / 4);
    column_scales_ =
        kConfig.scales_offset() + 4 * (kConfig.row_scales() + first_column + 2 * (lane % 4));
  }

  // Adds the products of the stage that begins here, a multiple of 128.
  __device__ void add(unsigned stage, Sums<kConfig>& sums) const {
    if constexpr (!kConfig.promote()) {
      multiply(stage, sums);
    } else {
      Sums<kConfig> partial;
      partial.clear();
      multiply(stage, partial);
      promote(stage, partial, sums);
    }
  }

 private:
  // The place of an eight of the warp's among the rows of B in a stage, from the warp's first.
  static constexpr int place_of_eight(int eight) {
    constexpr int kOfPart = kEights / kConfig.parts();
    return eight / kOfPart * kConfig.tile_columns + eight % kOfPart * 8;
  }

  // In the tensor core.
  __device__ void multiply(unsigned stage, Sums<kConfig>& sums) const {
#pragma unroll
    for (int unit = 0; unit < kUnitsOfRow; unit += kUnitsOfInstruction) {
      unsigned a[kSubTiles][4], b[kEights / 2][4];
      // Steps of K change those bits of a place alone that the swizzle changes.
#pragma unroll
      for (int i = 0; i < kSubTiles; ++i) {
        ptx::load_matrices((stage + rows_ + i * 16 * kMmaDepth) ^ unit * kUnitBytes, a[i]);
      }
#pragma unroll
      for (int j = 0; j < kEights / 2; ++j) {
        ptx::load_matrices(
            (stage + columns_ + place_of_eight(2 * j) * kMmaDepth) ^ unit * kUnitBytes, b[j]);
      }
#pragma unroll
      for (int i = 0; i < kSubTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kEights; ++j) {
          const unsigned eight[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
          ptx::multiply_add_fp8<kConfig.form.a.type, kConfig.form.b.type>(sums.of[i][j], a[i],
                                                                          eight);
        }
      }
    }
  }

  // In FP32, by the scales of the stage.
  __device__ void promote(unsigned stage, const Sums<kConfig>& partial, Sums<kConfig>& sums) const {
    float row_scales[kSubTiles][2];
    if constexpr (kRowsScaled) {
#pragma unroll
      for (int i = 0; i < 2 * kSubTiles; ++i) {
        row_scales[i / 2][i % 2] = ptx::load_shared(stage + row_scales_ + 4 * 8 * i);
      }
    }
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      float2 column_scales{};
      if constexpr (kColumnsScaled) {
        column_scales = ptx::load_shared_pair(stage + column_scales_ + 4 * place_of_eight(j));
      }
#pragma unroll
      for (int i = 0; i < kSubTiles; ++i) {
#pragma unroll
        for (int place = 0; place < 4; ++place) {
          const float of_column = place % 2 == 0 ? column_scales.x : column_scales.y;
          const float sum = partial.of[i][j][place];
          float& total = sums.of[i][j][place];
          if constexpr (kRowsScaled && kColumnsScaled) {
            total = __fmaf_rn(sum, row_scales[i][place / 2] * of_column, total);
          } else if constexpr (kRowsScaled) {
            total = __fmaf_rn(sum, row_scales[i][place / 2], total);
          } else if constexpr (kColumnsScaled) {
            total = __fmaf_rn(sum, of_column, total);
          } else {
            total += sum;
          }
        }
      }
    }
  }

  // In a stage, of the lane.
  unsigned rows_, columns_;
  unsigned row_scales_, column_scales_;
};

}  // namespace octofold::mma
