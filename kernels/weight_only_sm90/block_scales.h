// Scales of blocks of W, by one of two ways.
//
// Few rows: the products of a block start from zero in registers of their own (partial sums), and
// are added to the tile's sums times their scale.
//
// Many rows, which leave no registers for that: a column's sums are in units of the scale of the
// block that was added last; before the next one they are multiplied by the ratio of the two. With
// partial sums tiles were half as large (4096 rows, 4096,7168: 460 µs in place of 398). Below 2⁻⁶⁴
// of the unit, 0 above all, a scale would have the sums overflow. Then the unit stays, and the
// block's weights are multiplied by the ratio, and rounded to x's type.
//
//   begin(scales), next(scales)         the first block of a tile, or the next one, is about to be
//                                       decoded; `scales`: those of the warpgroup's columns
//   factors(sub_tile)                   of its weights
//   before(sub_tile, sums)              its products are about to begin
//   target(sums), accumulates(part)     where they are added, and whether part of them adds to it
//   after(scales, sub_tile, sums)       they have begun
//   finish(sub_tile, sums)              at the end of the tile
#pragma once

#include "kernels/ptx/shared_memory.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/weight_only_sm90/weights.h"

namespace octofold::weight_only_sm90 {

// The scale of the thread's column i, of its two of each sub-tile.
template <Sm90WeightOnlyConfig kConfig>
__device__ float block_scale(unsigned scales, int i) {
  const int column = 64 * (i / 2) + column_of<kConfig>(Lane(), i % 2);
  return ptx::load_shared(scales + 4 * column);
}

// There are none.
template <Sm90WeightOnlyConfig kConfig>
struct NoScales {
  using Sums = float[kConfig.tile_rows / 2];
  __device__ void begin(unsigned) {}
  __device__ void next(unsigned) {}
  __device__ NoFactors factors(int) const { return {}; }
  __device__ void before(int, Sums&) {}
  __device__ Sums& target(Sums& sums) { return sums; }
  static constexpr bool accumulates(int) { return true; }
  __device__ void after(unsigned, int, Sums&) {}
  __device__ void finish(int, Sums&) {}
};

template <Sm90WeightOnlyConfig kConfig>
class PartialSums : public NoScales<kConfig> {
  using Sums = typename NoScales<kConfig>::Sums;

 public:
  __device__ Sums& target(Sums&) { return partial_; }
  static constexpr bool accumulates(int part) { return part > 0; }
  __device__ void after(unsigned scales, int sub_tile, Sums& sums) {
    const float of_columns[2] = {block_scale<kConfig>(scales, 2 * sub_tile),
                                 block_scale<kConfig>(scales, 2 * sub_tile + 1)};
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(partial_);
#pragma unroll
    for (int i = 0; i < kConfig.tile_rows / 2; ++i) {
      sums[i] = __fmaf_rn(partial_[i], of_columns[i % 4 / 2], sums[i]);
    }
  }

 private:
  Sums partial_;
};

template <Sm90WeightOnlyConfig kConfig>
class Units : public NoScales<kConfig> {
  using Sums = typename NoScales<kConfig>::Sums;
  static constexpr int kColumns = 2 * kConfig.sub_tiles();

 public:
  __device__ void begin(unsigned scales) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float scale = block_scale<kConfig>(scales, i);
      units_[i] = scale == 0 ? 1 : scale;
      ratios_[i] = 1;
      factors_[i] = scale == 0 ? 0 : 1;
    }
    has_factors_ = are_factors();
  }

  __device__ void next(unsigned scales) {
    constexpr float kMost = 0x1p64f;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float scale = block_scale<kConfig>(scales, i);
      const bool is_unit = fabsf(scale) * kMost >= fabsf(units_[i]);  // not of 0 or NaN
      const float ratio = is_unit ? __fdividef(units_[i], scale) : __fdividef(scale, units_[i]);
      ratios_[i] = is_unit ? ratio : 1;
      factors_[i] = is_unit ? 1 : ratio;
      if (is_unit) units_[i] = scale;
    }
    has_factors_ = are_factors();
  }

  __device__ ColumnFactors factors(int sub_tile) const {
    return {has_factors_, {factors_[2 * sub_tile], factors_[2 * sub_tile + 1]}};
  }
  __device__ void before(int sub_tile, Sums& sums) {
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(sums);
    multiply(sums, ratios_, sub_tile);
  }
  __device__ void finish(int sub_tile, Sums& sums) { multiply(sums, units_, sub_tile); }

 private:
  // Any of the warp's, so that it goes one way.
  __device__ bool are_factors() const {
    bool are = false;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) are = are || factors_[i] != 1;
    return __any_sync(0xFFFFFFFFu, are) != 0;
  }
  static __device__ void multiply(Sums& sums, const float (&by)[kColumns], int sub_tile) {
#pragma unroll
    for (int i = 0; i < kConfig.tile_rows / 2; ++i) {
      sums[i] = __fmul_rn(sums[i], by[2 * sub_tile + i % 4 / 2]);
    }
  }

  float units_[kColumns], ratios_[kColumns], factors_[kColumns];
  bool has_factors_;
};

template <Sm90WeightOnlyConfig kConfig, bool kExist = kConfig.w_blocks,
          bool kPartial = kConfig.has_partial_sums()>
struct BlockScalesOf {
  using Type = NoScales<kConfig>;
};
template <Sm90WeightOnlyConfig kConfig>
struct BlockScalesOf<kConfig, true, true> {
  using Type = PartialSums<kConfig>;
};
template <Sm90WeightOnlyConfig kConfig>
struct BlockScalesOf<kConfig, true, false> {
  using Type = Units<kConfig>;
};

}  // namespace octofold::weight_only_sm90
