// Scales of a tile whose rows have their own, of 1x128, while its transpose has one for all of it:
// the square's largest magnitude is that of its rows.
#pragma once

#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/line_magnitudes.h"
#include "kernels/cast/reductions.h"
#include "kernels/cast/tile.h"
#include "kernels/cast/unit.h"

namespace octofold::cast {

template <TileCastConfig kConfig>
class MixedScales {
  using Magnitudes = LineMagnitudes<kConfig, true, false>;
  static constexpr int kWarps = kConfig.tile_rows / 32;  // that own rows

 public:
  using Caster = CasterOf<kConfig.format>;

  // Scratch is not needed any more after prepare(); Kept is.
  using Scratch = typename Magnitudes::Scratch;
  struct Kept {
    Caster casters[kConfig.tile_rows];
    unsigned warps[kWarps];  // the largest magnitudes of their rows
  };
  static constexpr bool kScratchIsRead = false;

  __device__ MixedScales(const CastParams& params, const Tile<kConfig>& tile, Scratch& scratch,
                         Kept& kept)
      : params_(params), tile_(tile), magnitudes_(tile, scratch), kept_(kept) {}

  // Makes the casters, and writes their scales. Returns whether any caster is unusual.
  __device__ bool prepare() {
    magnitudes_.share();
    const int row = static_cast<int>(threadIdx.x);
    const bool owns = row < kConfig.tile_rows;
    float amax = 0;
    bool unusual = false;
    if (owns) {
      amax = magnitudes_.of_row(row);
      Caster& caster = kept_.casters[row];
      caster = Caster::make(write_scale<kConfig.format>(row_scale(row), amax));
      unusual = caster.is_unusual();
    }
    // Magnitudes are compared as bits, in whose order a NaN is the largest.
    const unsigned of_warp = largest_of_lanes<DType::kFloat32, 32>(__float_as_uint(amax));
    if (owns && row % 32 == 0) kept_.warps[row / 32] = of_warp;
    if constexpr (Caster::kMayBeUnusual) {
      unusual = __syncthreads_or(unusual);
    } else {
      __syncthreads();
    }
    unsigned largest = 0;
#pragma unroll
    for (const unsigned warp : kept_.warps) {
      largest = numeric::larger<DType::kFloat32>(largest, warp);
    }
    of_columns_ = Caster::make(write_scale<kConfig.format>(
        threadIdx.x == 0 ? tile_.transposed_scale(params_) : nullptr, __uint_as_float(largest)));
    return unusual || of_columns_.is_unusual();
  }

  // Casters of a row that this thread holds, and of any column of the tile.
  __device__ Caster of_row(int row) const {
    return kept_.casters[tile_.group * Tile<kConfig>::kRows + row];
  }
  __device__ const Caster& of_column(int /*column*/) const { return of_columns_; }

 private:
  // Null if there is no such row.
  __device__ float* row_scale(int row) const {
    const config::CastTarget& target = params_.row_target;
    const long long at = tile_.first_row() + row;
    if (at >= tile_.end_row(params_)) return nullptr;
    if (!is_written<kConfig.source>(params_, at)) return nullptr;
    return target.scale + at * target.scale_row_stride +
           tile_.first_col() / kScaleBlock * target.scale_col_stride;
  }

  const CastParams& params_;
  const Tile<kConfig>& tile_;
  Magnitudes magnitudes_;
  Kept& kept_;
  Caster of_columns_;
};

}  // namespace octofold::cast
