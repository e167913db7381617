// Scales of the lines of a tile: of its rows, in the cast of x, and of its columns, in that of the
// transpose. A thread owns each of them, and all share the casters through shared memory.
#pragma once

#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/line_magnitudes.h"
#include "kernels/cast/tile.h"
#include "kernels/cast/unit.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::cast {

// The largest magnitudes of columns whose rows a cluster has, each of its blocks a tile of them.
// Each block stores its tile's in the shared memory of all, [tiles][128], so that nobody reads
// another's, and may leave.
template <int kTiles>
class ClusterMagnitudes {
 public:
  // All threads of all blocks together: thread i < 128 has the magnitude of column i of its tile,
  // not negative, or NaN.
  static __device__ void share(float magnitude) {
    const int column = static_cast<int>(threadIdx.x);
    ptx::cluster_sync();  // all blocks are there
    if (column < kScaleBlock) {
      const unsigned place = place_of(ptx::cluster_rank(), column);
#pragma unroll
      for (unsigned block = 0; block < kTiles; ++block) {
        ptx::store_at_rank(place, block, __float_as_uint(magnitude));
      }
    }
    ptx::cluster_sync();
  }

  static __device__ float of_column(int column) {
    unsigned largest = 0;  // as whole numbers, of which NaN is the largest
#pragma unroll
    for (unsigned block = 0; block < kTiles; ++block) {
      const unsigned of_block = ptx::load_shared_word(place_of(block, column));
      largest = largest < of_block ? of_block : largest;
    }
    return __uint_as_float(largest);
  }

 private:
  static __device__ unsigned place_of(unsigned block, int column) {
    return ptx::dynamic_shared_memory() + 4 * (block * kScaleBlock + static_cast<unsigned>(column));
  }
};

template <TileCastConfig kConfig>
class LineScales {
  // True if these magnitudes are worked out here; others the scale tensors hold.
  static constexpr bool kFindsColumns =
      kConfig.to_transposed &&
      (kConfig.phase == CastPhase::kWhole || kConfig.phase == CastPhase::kAmax);
  static constexpr bool kFindsRows = kConfig.to_rows && (kConfig.phase == CastPhase::kWhole ||
                                                         kConfig.phase == CastPhase::kWholeRows ||
                                                         kConfig.phase == CastPhase::kAmax);
  using Magnitudes = LineMagnitudes<kConfig, kFindsRows, kFindsColumns>;

 public:
  using Caster = typename PhaseCaster<kConfig.format, kConfig.phase, kConfig.amax_given>::Type;

  // Scratch is not needed any more once the casters are there; Kept holds the casters.
  using Scratch = typename Magnitudes::Scratch;
  struct Kept {
    Caster casters[kConfig.units()];  // of columns, then of rows; see place_of_line
  };
  static constexpr bool kScratchIsRead = false;

  __device__ LineScales(const CastParams& params, const Tile<kConfig>& tile, Scratch& scratch,
                        Kept& kept)
      : params_(params), tile_(tile), magnitudes_(tile, scratch), kept_(kept) {}

  // Raises what is gathered in the scale tensors.
  __device__ void gather() {
    magnitudes_.share();
    const int number = static_cast<int>(threadIdx.x);
    if (number < kConfig.units()) {
      const Unit unit = unit_at(number);
      raise_amax(unit.scale, unit.amax);
    }
  }

  // Makes the casters, and writes their scales where they are worked out here. Returns whether any
  // caster is unusual.
  __device__ bool prepare() {
    if constexpr (kFindsRows || kFindsColumns) magnitudes_.share();
    const int number = static_cast<int>(threadIdx.x);
    if constexpr (kConfig.is_clustered()) {
      ClusterMagnitudes<kConfig.cluster_tiles>::share(
          number < kScaleBlock ? magnitudes_.of_column(number) : 0);
    }
    bool unusual = false;
    if (number < kConfig.units()) {
      Caster& caster = kept_.casters[place_of_line<kConfig>(number)];
      caster = make_caster(unit_at(number));
      unusual = caster.is_unusual();
    }
    if constexpr (Caster::kMayBeUnusual) return __syncthreads_or(unusual);
    __syncthreads();
    return false;
  }

  // Casters of a row that this thread holds, and of any column of the tile.
  __device__ Caster of_row(int row) const {
    return kept_.casters[kConfig.column_units() + tile_.group * kRows + row];
  }
  __device__ Caster of_column(int column) const {
    return kept_.casters[place_of_line<kConfig>(column)];
  }

 private:
  static constexpr int kRows = Tile<kConfig>::kRows;

  struct Unit {
    float* scale;  // null if there is no such line
    bool is_found;
    float amax;  // where it is found here
  };

  static __device__ Caster make_caster(const Unit& unit) {
    if constexpr (kConfig.phase == CastPhase::kWhole) {
      return Caster::make(write_scale<kConfig.format>(unit.scale, unit.amax));
    } else {
      if (unit.is_found) return Caster::make(write_scale<kConfig.format>(unit.scale, unit.amax));
      // Any usual number in place of one that does not exist.
      return held_caster<kConfig.format, kConfig.phase, kConfig.amax_given>(
          unit.scale != nullptr ? *unit.scale : 1.0f);
    }
  }

  // Returns the unit of a line: columns come first, then rows.
  __device__ Unit unit_at(int number) const {
    if (number < kConfig.column_units()) {
      bool exists = tile_.first_col() + number < params_.cols;
      if constexpr (kConfig.is_clustered()) exists = exists && tile_.place.m == 0;  // one writes it
      float* scale = exists
                         ? scale_of(params_.transposed_target,
                                    tile_.transposed_row(params_) + number, tile_.transposed_col())
                         : nullptr;
      return {scale, kFindsColumns, kFindsColumns ? amax_of_column(number) : 0};
    }
    const int row = number - kConfig.column_units();
    const long long at = tile_.first_row() + row;
    const bool exists = at < tile_.end_row(params_) && is_written<kConfig.source>(params_, at);
    float* scale = exists ? scale_of(params_.row_target, at, tile_.first_col()) : nullptr;
    return {scale, kFindsRows, kFindsRows ? magnitudes_.of_row(row) : 0};
  }
  __device__ float amax_of_column(int column) const {
    if constexpr (kConfig.is_clustered())
      return ClusterMagnitudes<kConfig.cluster_tiles>::of_column(column);
    return magnitudes_.of_column(column);
  }
  static __device__ float* scale_of(const config::CastTarget& target, long long row,
                                    long long col) {
    return target.scale + row * target.scale_row_stride +
           col / kScaleBlock * target.scale_col_stride;
  }

  const CastParams& params_;
  const Tile<kConfig>& tile_;
  Magnitudes magnitudes_;
  Kept& kept_;
};

}  // namespace octofold::cast
