// The cast of a tile of 128 columns by a block of threads: amax, scales, codes, of the tile, of its
// transpose or of both, from one read of x into registers.
#pragma once

#include "kernels/config/arithmetic.h"
#include "kernels/config/cast_config.h"
#include "kernels/config/cast_params.h"
#include "kernels/config/tile_schedule.h"
#include "kernels/numeric/caster.h"
#include "kernels/numeric/vector.h"
#include "kernels/quant/access.h"
#include "kernels/quant/magnitudes.h"
#include "kernels/quant/unit.h"

namespace octofold::quant {

using config::CastOutput;
using config::CastParams;

template <CastConfig kConfig>
class TileCast {
 public:
  struct Shared {
    union {
      // Largest magnitudes in the rows of a thread, column by column.
      alignas(16) unsigned column_magnitudes[kConfig.groups()][kConfig.lanes()][4];
      unsigned warp_magnitudes[kConfig.threads() / 32];
      // The transposed codes, 8 rows of x at a time, permuted (see store_transposed).
      unsigned long long transposed[kConfig.has_transposed() ? kScaleBlock : 1]
                                   [kConfig.tile_rows / 8];
    };
    unsigned row_magnitudes[kConfig.tile_rows];
    // Of columns, then of rows; see place_of.
    numeric::Caster<kConfig.rule.form, kConfig.in> casters[kConfig.units()];
  };

  __device__ TileCast(const CastParams& params, Shared& shared) : params_(params), shared_(shared) {
    const config::TileSchedule schedule{
        .tiles_m = static_cast<int>(config::ceil_divide(params.rows, kConfig.tile_rows)),
        .tiles_n = static_cast<int>(config::ceil_divide(params.cols, kScaleBlock)),
        .raster_rows = kConfig.raster_rows};
    tile_ = schedule.at(static_cast<int>(blockIdx.x));
    lane_ = static_cast<int>(threadIdx.x % kConfig.lanes());
    group_ = static_cast<int>(threadIdx.x / kConfig.lanes());
    cols_ = at_most(params.cols - first_col() - lane_ * kVector, kVector);
    rows_ = cols_ > 0 ? at_most(params.rows - first_row() - group_ * kRows, kRows) : 0;
  }

  __device__ void run() {
    load();
    Caster of_tile;
    bool unusual;
    if constexpr (kPerRow) {
      unusual = own_rows_and_columns();
    } else {
      of_tile = own_tile();
      unusual = of_tile.is_unusual();
    }
    if constexpr (kConfig.step != CastStep::kAmax) {
      if (unusual) {
        store<true>(of_tile);
      } else {
        store<false>(of_tile);
      }
    }
  }

 private:
  static constexpr int kVector = kConfig.vector();
  static constexpr int kLanes = kConfig.lanes();
  static constexpr int kRows = kConfig.rows_per_thread;
  // Whether rows of the matrices written have scales of their own.
  static constexpr bool kPerRow =
      kConfig.unit == Granularity::kChannel || kConfig.unit == Granularity::kBlock1x128;
  static constexpr bool kKnowsAmax = kConfig.step == CastStep::kEncode;
  using Caster = numeric::Caster<kConfig.rule.form, kConfig.in>;
  using Input = Storage<kConfig.in>;

  // Of the tile.
  __device__ long long first_row() const {
    return static_cast<long long>(tile_.m) * kConfig.tile_rows;
  }
  __device__ long long first_col() const { return static_cast<long long>(tile_.n) * kScaleBlock; }

  // How many elements of row `row` of this thread exist.
  template <bool kVectors>
  __device__ int exist(int row) const {
    return row < rows_ ? (kVectors ? kVector : cols_) : 0;
  }

  __device__ void load() {
    const Input* x = static_cast<const Input*>(params_.x) +
                     (first_row() + group_ * kRows) * params_.x_stride + first_col() +
                     lane_ * kVector;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      quant::load<Input, kConfig.vector_loads, kVector>(x + i * params_.x_stride,
                                                        exist<kConfig.vector_loads>(i), x_[i]);
    }
  }

  static __device__ unsigned larger(unsigned left, unsigned right) {
    return numeric::larger<kConfig.in>(left, right);
  }

  // Leaves the largest magnitudes in each row and column in shared memory.
  __device__ void share_magnitudes() {
    if constexpr (kConfig.has_transposed()) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        unsigned magnitudes = numeric::magnitude<kConfig.in>(x_[0][i]);
#pragma unroll
        for (int row = 1; row < kRows; ++row) {
          magnitudes = larger(magnitudes, numeric::magnitude<kConfig.in>(x_[row][i]));
        }
        shared_.column_magnitudes[group_][lane_][i] = magnitudes;
      }
    }
    if constexpr (kConfig.has_rows()) {
      unsigned magnitudes[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) magnitudes[i] = largest_of_vector<kConfig.in>(x_[i]);
      int distance = kLanes / 2;
      // Of two lanes, each hands on half of its rows and keeps the other half, until it is left
      // with one row: few exchanges for all rows together.
#pragma unroll
      for (int half = kRows / 2; half > 0; half /= 2) {
        const bool upper = (lane_ & distance) != 0;
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const unsigned kept = upper ? magnitudes[half + i] : magnitudes[i];
          const unsigned given = upper ? magnitudes[i] : magnitudes[half + i];
          magnitudes[i] = larger(kept, __shfl_xor_sync(0xFFFFFFFFu, given, distance));
        }
        distance /= 2;
      }
      const unsigned of_row = largest_of_lanes<kConfig.in, kLanes / kRows>(magnitudes[0]);
      constexpr int kLanesPerRow = kLanes / kRows;
      if (lane_ % kLanesPerRow == 0) {
        shared_.row_magnitudes[group_ * kRows + lane_ / kLanesPerRow] = of_row;
      }
    }
    __syncthreads();
  }

  __device__ float amax_of_column(int column) const {
    unsigned magnitudes = 0;
#pragma unroll
    for (int group = 0; group < kConfig.groups(); ++group) {
      const auto* columns = reinterpret_cast<const Input*>(shared_.column_magnitudes[group]);
      magnitudes = larger(magnitudes, columns[column]);
    }
    return numeric::largest<kConfig.in>(magnitudes);
  }

  // A thread for each unit, which leaves the unit's caster in shared memory. Returns whether any of
  // them is unusual.
  __device__ bool own_rows_and_columns() {
    if constexpr (!kKnowsAmax) share_magnitudes();
    const int unit = static_cast<int>(threadIdx.x);
    bool unusual = false;
    if (unit < kConfig.units()) {
      float* scale;
      float amax = 0;
      if (unit < kConfig.column_units()) {
        scale = scale_of(params_.transposed_cast, first_col() + unit, params_.cols, first_row());
        if constexpr (!kKnowsAmax) amax = amax_of_column(unit);
      } else {
        const int row = unit - kConfig.column_units();
        scale = scale_of(params_.row_cast, first_row() + row, params_.rows, first_col());
        if constexpr (!kKnowsAmax) amax = numeric::largest<kConfig.in>(shared_.row_magnitudes[row]);
      }
      if (kKnowsAmax && scale != nullptr) amax = *scale;
      const Caster caster = Caster::make(own_unit<kConfig>(amax, scale));
      shared_.casters[place_of(unit)] = caster;
      unusual = caster.is_unusual();
    }
    if constexpr (Caster::kMayBeUnusual) return __syncthreads_or(unusual);
    __syncthreads();
    return false;
  }

  // Where a unit's caster is. Neighbouring lanes ask for columns a vector apart: those lie next to
  // each other, so that lanes do not meet in a bank.
  static __device__ int place_of(int unit) {
    return unit < kConfig.column_units() ? unit % kVector * kLanes + unit / kVector : unit;
  }

  // Where the scale of a row of the output is that holds its column `col`; null if there is no such
  // row.
  static __device__ float* scale_of(const CastOutput& out, long long row, long long rows,
                                    long long col) {
    if (row >= rows) return nullptr;
    return out.scale + row * out.scale_row_stride + col / kScaleBlock * out.scale_col_stride;
  }

  // All threads compute the cast of the tile (kTensor: of all), thread 0 owns it.
  __device__ Caster own_tile() {
    float amax;
    if constexpr (kKnowsAmax) {
      amax = *(kConfig.has_rows() ? params_.row_cast : params_.transposed_cast).scale;
    } else {
      unsigned magnitudes = 0;
#pragma unroll
      for (const auto& vector : x_) {
        magnitudes = larger(magnitudes, largest_of_vector<kConfig.in>(vector));
      }
      magnitudes =
          largest_of_warps<kConfig.in, kConfig.threads() / 32>(magnitudes, shared_.warp_magnitudes);
      amax = numeric::largest<kConfig.in>(magnitudes);
    }
    const CastOutput &row = params_.row_cast, &transposed = params_.transposed_cast;
    const bool owner = threadIdx.x == 0;
    float operand = 0;
    if constexpr (kConfig.has_rows()) {
      float* scale = row.scale + first_row() / kScaleBlock * row.scale_row_stride +
                     first_col() / kScaleBlock * row.scale_col_stride;
      operand = own_unit<kConfig>(amax, owner ? scale : nullptr);
    }
    if constexpr (kConfig.has_transposed()) {
      float* scale = transposed.scale + first_col() / kScaleBlock * transposed.scale_row_stride +
                     first_row() / kScaleBlock * transposed.scale_col_stride;
      operand = own_unit<kConfig>(amax, owner ? scale : nullptr);
    }
    return Caster::make(operand);
  }

  // The caster of a row of x that this thread holds, or of a column; or `of_tile`.
  __device__ Caster caster_of_row(int row, const Caster& of_tile) const {
    if constexpr (!kPerRow) return of_tile;
    return shared_.casters[kConfig.column_units() + group_ * kRows + row];
  }
  __device__ Caster caster_of_column(int column, const Caster& of_tile) const {
    if constexpr (!kPerRow) return of_tile;
    return shared_.casters[place_of(column)];
  }

  template <bool kUnusual>
  __device__ void store(const Caster& of_tile) {
    if constexpr (kConfig.has_rows()) store_rows<kUnusual>(of_tile);
    if constexpr (kConfig.has_transposed()) store_transposed<kUnusual>(of_tile);
  }

  template <bool kUnusual>
  __device__ void store_rows(const Caster& of_tile) const {
    const CastOutput& out = params_.row_cast;
    unsigned char* codes = out.codes + (first_row() + group_ * kRows) * out.codes_stride +
                           first_col() + lane_ * kVector;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float values[kVector];
      numeric::widen<kConfig.in>(x_[i], values);
      caster_of_row(i, of_tile).template apply<kUnusual>(values);
      unsigned words[kVector / 4];
      numeric::narrow<kConfig.out, kConfig.saturate>(values, words);
      quant::store<unsigned char, kConfig.vector_stores, kVector>(
          codes + i * out.codes_stride, exist<kConfig.vector_stores>(i), words);
    }
  }

  // Codes of 8 rows in one column are 8 bytes of a row of the transpose. They are exchanged through
  // shared memory, so that 16 threads store the 128 bytes of such a row. Where they lie in it is
  // permuted from column to column: neither the threads that write (neighbouring lanes, the same
  // group) nor those that read (the same column) meet in a bank.
  template <bool kUnusual>
  __device__ void store_transposed(const Caster& of_tile) {
    constexpr int kPerWord = numeric::kPerWord<kConfig.in>;
    if constexpr (!kPerRow && !kKnowsAmax) __syncthreads();  // the magnitudes have been read
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      float values[kRows][kPerWord];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        numeric::widen<kConfig.in, true>(&x_[row][word], values[row]);
      }
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        const int column = lane_ * kVector + word * kPerWord + i;
        float column_values[8];
#pragma unroll
        for (int row = 0; row < 8; ++row) column_values[row] = values[row][i];
        caster_of_column(column, of_tile).template apply<kUnusual>(column_values);
        unsigned words[2];
        numeric::narrow<kConfig.out, kConfig.saturate>(column_values, words);
        shared_.transposed[column][group_ ^ (lane_ % 16)] =
            words[0] | static_cast<unsigned long long>(words[1]) << 32;
      }
    }
    __syncthreads();
    const CastOutput& out = params_.transposed_cast;
    const int chunk = static_cast<int>(threadIdx.x % 16);
    const int rows_exist = at_most(params_.rows - first_row() - chunk * 8, 8);
#pragma unroll
    for (int i = 0; i < kScaleBlock * 16 / kConfig.threads(); ++i) {
      const int column = i * (kConfig.threads() / 16) + static_cast<int>(threadIdx.x / 16);
      const unsigned long long codes = shared_.transposed[column][chunk ^ (column / kVector % 16)];
      const unsigned words[2] = {static_cast<unsigned>(codes), static_cast<unsigned>(codes >> 32)};
      const bool exists = first_col() + column < params_.cols;
      quant::store<unsigned char, kConfig.vector_stores, 8>(
          out.codes + (first_col() + column) * out.codes_stride + first_row() + chunk * 8,
          exists ? rows_exist : 0, words);
    }
  }

  const CastParams& params_;
  Shared& shared_;
  config::TileCoordinate tile_;
  int lane_, group_;  // column and row of this thread among the threads of the tile
  int rows_, cols_;   // how much of what this thread holds exists: 0 or less, nothing
  unsigned x_[kRows][4];
};

}  // namespace octofold::quant
