// One scale for all of a tile, and maybe for other tiles too: the casters are in registers, and
// thread 0 owns the scale.
#pragma once

#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/reductions.h"
#include "kernels/cast/tile.h"
#include "kernels/cast/unit.h"
#include "kernels/numeric/vector.h"

namespace octofold::cast {

template <TileCastConfig kConfig>
class TileScales {
 public:
  using Caster = typename PhaseCaster<kConfig.format, kConfig.phase, kConfig.amax_given>::Type;

  struct Scratch {
    unsigned warps[kConfig.threads() / 32];  // their largest magnitudes
  };
  struct Kept {};
  // Other threads may still read it after prepare().
  static constexpr bool kScratchIsRead = kConfig.phase == CastPhase::kWhole;

  __device__ TileScales(const CastParams& params, const Tile<kConfig>& tile, Scratch& scratch,
                        Kept& /*kept*/)
      : params_(params), tile_(tile), scratch_(scratch) {}

  // Raises what is gathered in the scale tensors.
  __device__ void gather() {
    const float amax = amax_of_tile();
    if constexpr (kConfig.to_rows) raise_amax(owned(row_scale()), amax);
    if constexpr (kConfig.to_transposed) raise_amax(owned(transposed_scale()), amax);
  }

  // Makes the casters, and writes their scale where it is worked out here. Returns whether a caster
  // is unusual.
  __device__ bool prepare() {
    if constexpr (kConfig.phase == CastPhase::kWhole) {
      prepare_whole();
    } else if constexpr (kConfig.phase == CastPhase::kEncode && !kConfig.amax_given) {
      // Both tensors hold the same.
      of_rows_ = held(kConfig.to_rows ? row_scale() : transposed_scale());
      of_columns_ = of_rows_;
    } else {
      if constexpr (kConfig.to_rows) of_rows_ = held(row_scale());
      if constexpr (kConfig.to_transposed) of_columns_ = held(transposed_scale());
      return (kConfig.to_rows && of_rows_.is_unusual()) ||
             (kConfig.to_transposed && of_columns_.is_unusual());
    }
    return of_rows_.is_unusual();
  }

  // Casters of a row that this thread holds, and of any column of the tile.
  __device__ const Caster& of_row(int /*row*/) const { return of_rows_; }
  __device__ const Caster& of_column(int /*column*/) const { return of_columns_; }

 private:
  __device__ void prepare_whole() {
    const float amax = amax_of_tile();
    float operand = 0;
    if constexpr (kConfig.to_rows) {
      operand = write_scale<kConfig.format>(owned(row_scale()), amax);
    }
    if constexpr (kConfig.to_transposed) {
      operand = write_scale<kConfig.format>(owned(transposed_scale()), amax);
    }
    of_rows_ = of_columns_ = Caster::make(operand);
  }

  __device__ float amax_of_tile() {
    constexpr DType kIn = kConfig.format.in;
    unsigned magnitudes = 0;
#pragma unroll
    for (const auto& vector : tile_.words) {
      magnitudes = numeric::larger<kIn>(magnitudes, largest_of_vector<kIn>(vector));
    }
    magnitudes = largest_of_warps<kIn, kConfig.threads() / 32>(magnitudes, scratch_.warps);
    return numeric::largest<kIn>(magnitudes);
  }

  static __device__ Caster held(const float* scale) {
    return held_caster<kConfig.format, kConfig.phase, kConfig.amax_given>(*scale);
  }
  static __device__ float* owned(float* scale) { return threadIdx.x == 0 ? scale : nullptr; }

  __device__ float* row_scale() const { return tile_.scale(params_); }
  __device__ float* transposed_scale() const { return tile_.transposed_scale(params_); }

  const CastParams& params_;
  const Tile<kConfig>& tile_;
  Scratch& scratch_;
  Caster of_rows_, of_columns_;
};

}  // namespace octofold::cast
