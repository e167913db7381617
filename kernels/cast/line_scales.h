// Scales of the lines of a tile: of its rows, in the cast of x, and of its columns, in that of the
// transpose. A thread owns each of them, and all share the casters through shared memory.
#pragma once

#include "kernels/cast/magnitudes.h"
#include "kernels/cast/tile.h"
#include "kernels/cast/unit.h"
#include "kernels/config/cast_config.h"
#include "kernels/config/cast_params.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/swap.h"

namespace octofold::cast {

template <TileCastConfig kConfig>
class LineScales {
 public:
  using Caster = typename PhaseCaster<kConfig.format, kConfig.phase>::Type;

  // What is not needed any more once the casters are there, and they.
  struct Scratch {
    // Largest magnitudes in the rows of a thread, column by column, and in whole rows.
    alignas(16) unsigned columns[kConfig.to_transposed ? kConfig.groups() : 1][kConfig.lanes()][4];
    unsigned rows[kConfig.tile_rows];
  };
  struct Kept {
    Caster casters[kConfig.units()];  // of columns, then of rows; see place_of
  };
  static constexpr bool kScratchIsRead = false;

  __device__ LineScales(const CastParams& params, const Tile<kConfig>& tile, Scratch& scratch,
                        Kept& kept)
      : params_(params), tile_(tile), scratch_(scratch), kept_(kept) {}

  // Raises what is gathered in the scale tensors.
  __device__ void gather() {
    share_magnitudes();
    const int number = static_cast<int>(threadIdx.x);
    if (number < kConfig.units()) {
      const Unit unit = unit_at(number);
      raise_amax(unit.scale, unit.amax);
    }
  }

  // Makes the casters, and writes their scales where they are worked out here. Returns whether any
  // caster is unusual.
  __device__ bool prepare() {
    if constexpr (kFindsRows || kFindsColumns) share_magnitudes();
    const int number = static_cast<int>(threadIdx.x);
    bool unusual = false;
    if (number < kConfig.units()) {
      Caster& caster = kept_.casters[place_of(number)];
      caster = make_caster(unit_at(number));
      unusual = caster.is_unusual();
    }
    if constexpr (Caster::kMayBeUnusual) return __syncthreads_or(unusual);
    __syncthreads();
    return false;
  }

  // Of a row that this thread holds, and of any column of the tile.
  __device__ Caster of_row(int row) const {
    return kept_.casters[kConfig.column_units() + tile_.group * kRows + row];
  }
  __device__ Caster of_column(int column) const { return kept_.casters[place_of(column)]; }

 private:
  static constexpr int kVector = Tile<kConfig>::kVector;
  static constexpr int kLanes = Tile<kConfig>::kLanes;
  static constexpr int kRows = Tile<kConfig>::kRows;
  static constexpr DType kIn = kConfig.format.in;
  // Which magnitudes are worked out here; others the scale tensors hold.
  static constexpr bool kFindsColumns =
      kConfig.to_transposed &&
      (kConfig.phase == CastPhase::kWhole || kConfig.phase == CastPhase::kAmax);
  static constexpr bool kFindsRows = kConfig.to_rows && (kConfig.phase == CastPhase::kWhole ||
                                                         kConfig.phase == CastPhase::kWholeRows ||
                                                         kConfig.phase == CastPhase::kAmax);

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
      return held_caster<kConfig.format, kConfig.phase>(unit.scale != nullptr ? *unit.scale : 1.0f);
    }
  }

  // Leaves the largest magnitudes in each row and column in shared memory.
  __device__ void share_magnitudes() {
    if constexpr (kFindsColumns) share_columns();
    if constexpr (kFindsRows) share_rows();
    __syncthreads();
  }

  __device__ void share_columns() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned magnitudes = numeric::magnitude<kIn>(tile_.words[0][i]);
#pragma unroll
      for (int row = 1; row < kRows; ++row) {
        magnitudes = numeric::larger<kIn>(magnitudes, numeric::magnitude<kIn>(tile_.words[row][i]));
      }
      scratch_.columns[tile_.group][tile_.lane][i] = magnitudes;
    }
  }

  // Of two lanes, each hands on half of its rows and keeps the other half, until it is left with
  // one row: few exchanges for all rows together.
  __device__ void share_rows() {
    unsigned magnitudes[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) magnitudes[i] = largest_of_vector<kIn>(tile_.words[i]);
    int distance = kLanes / 2;
#pragma unroll
    for (int half = kRows / 2; half > 0; half /= 2) {
      const unsigned upper = static_cast<unsigned>(tile_.lane & distance);
#pragma unroll
      for (int i = 0; i < half; ++i) {
        unsigned kept = magnitudes[i], given = magnitudes[half + i];
        ptx::swap_if(upper, kept, given);
        magnitudes[i] = numeric::larger<kIn>(kept, __shfl_xor_sync(0xFFFFFFFFu, given, distance));
      }
      distance /= 2;
    }
    constexpr int kLanesPerRow = kLanes / kRows;
    const unsigned of_row = largest_of_lanes<kIn, kLanesPerRow>(magnitudes[0]);
    if (tile_.lane % kLanesPerRow == 0) {
      scratch_.rows[tile_.group * kRows + tile_.lane / kLanesPerRow] = of_row;
    }
  }

  __device__ float amax_of_column(int column) const {
    unsigned magnitudes = 0;
#pragma unroll
    for (const auto& group : scratch_.columns) {
      magnitudes =
          numeric::larger<kIn>(magnitudes, reinterpret_cast<const Storage<kIn>*>(group)[column]);
    }
    return numeric::largest<kIn>(magnitudes);
  }

  // Of columns first, then of rows.
  __device__ Unit unit_at(int number) const {
    if (number < kConfig.column_units()) {
      float* scale = scale_of(params_.transposed_target, tile_.first_col() + number, params_.cols,
                              tile_.first_row());
      return {scale, kFindsColumns, kFindsColumns ? amax_of_column(number) : 0};
    }
    const int row = number - kConfig.column_units();
    float* scale =
        scale_of(params_.row_target, tile_.first_row() + row, params_.rows, tile_.first_col());
    return {scale, kFindsRows, kFindsRows ? numeric::largest<kIn>(scratch_.rows[row]) : 0};
  }
  static __device__ float* scale_of(const config::CastTarget& target, long long row, long long rows,
                                    long long col) {
    if (row >= rows) return nullptr;
    return target.scale + row * target.scale_row_stride +
           col / kScaleBlock * target.scale_col_stride;
  }

  // Where a unit's caster is. Neighbouring lanes ask for columns a vector apart: those lie next to
  // each other, so that lanes do not meet in a bank.
  static __device__ int place_of(int number) {
    return number < kConfig.column_units() ? number % kVector * kLanes + number / kVector : number;
  }

  const CastParams& params_;
  const Tile<kConfig>& tile_;
  Scratch& scratch_;
  Kept& kept_;
};

}  // namespace octofold::cast
