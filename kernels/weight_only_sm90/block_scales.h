// Scales of blocks of W. A column's sums are in units of the scale of the block that was added
// last; where the next one has another scale, they are first multiplied by the ratio of the two. So
// the tensor cores add up all of the depth, and there is one set of sums: with a second one, for
// the products of a block, tiles were half as large (4096 rows, 4096,7168: 460 µs).
//
// Below 2⁻⁶⁴ of the unit, 0 above all, a scale would have the sums overflow. Then the unit stays,
// and the block's weights are multiplied by the ratio, and rounded to x's type.
#pragma once

#include "kernels/ptx/shared_memory.h"
#include "kernels/weight_only_sm90/weights.h"

namespace octofold::weight_only_sm90 {

// Of a thread's two columns of each sub-tile.
template <Sm90WeightOnlyConfig kConfig, bool kExist = kConfig.w_blocks>
class BlockScales {
  static constexpr int kColumns = 2 * kConfig.sub_tiles();

 public:
  // The first block of a tile. `scales`: those of the warpgroup's columns.
  __device__ void begin(unsigned scales) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float scale = load(scales, i);
      units_[i] = scale == 0 ? 1 : scale;
      ratios_[i] = 1;
      factors_[i] = scale == 0 ? 0 : 1;
    }
  }
  __device__ void next(unsigned scales) {
    constexpr float kLeast = 0x1p-64f;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float scale = load(scales, i);
      const bool is_unit = fabsf(scale) >= fabsf(units_[i]) * kLeast;  // not of NaN
      const float ratio = is_unit ? __fdividef(units_[i], scale) : __fdividef(scale, units_[i]);
      ratios_[i] = is_unit ? ratio : 1;
      factors_[i] = is_unit ? 1 : ratio;
      if (is_unit) units_[i] = scale;
    }
  }

  // From the units of the block before to those of this one.
  template <int kSums>
  __device__ void rescale(int sub_tile, float (&sums)[kSums]) const {
    multiply(ratios_, sub_tile, sums);
  }
  // To what they stand for.
  template <int kSums>
  __device__ void finish(int sub_tile, float (&sums)[kSums]) const {
    multiply(units_, sub_tile, sums);
  }

  // What weights of the block are multiplied by.
  __device__ ColumnFactors factors(int sub_tile) const {
    return {{factors_[2 * sub_tile], factors_[2 * sub_tile + 1]}};
  }

 private:
  static __device__ float load(unsigned scales, int i) {
    const int column = 64 * (i / 2) + column_of<kConfig>(Lane(), i % 2);
    return ptx::load_shared(scales + 4 * column);
  }
  template <int kSums>
  static __device__ void multiply(const float (&by)[kColumns], int sub_tile, float (&sums)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = __fmul_rn(sums[i], by[2 * sub_tile + i % 4 / 2]);
  }

  float units_[kColumns], ratios_[kColumns], factors_[kColumns];
};

// There are none: weights have no factors, and sums no units.
template <Sm90WeightOnlyConfig kConfig>
class BlockScales<kConfig, false> {
 public:
  __device__ void begin(unsigned) {}
  __device__ void next(unsigned) {}
  template <int kSums>
  __device__ void rescale(int, float (&)[kSums]) const {}
  template <int kSums>
  __device__ void finish(int, float (&)[kSums]) const {}
  __device__ NoFactors factors(int) const { return {}; }
};

}  // namespace octofold::weight_only_sm90
