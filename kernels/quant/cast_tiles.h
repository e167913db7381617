// The cast of a tile of 128 columns by a block of threads: amax, scales, codes, of the tile, of its
// transpose or of both, from one read of x into registers.
#pragma once

#include "kernels/config/cast_config.h"
#include "kernels/config/cast_params.h"
#include "kernels/numeric/unit_cast.h"
#include "kernels/numeric/vector.h"
#include "kernels/quant/access.h"
#include "kernels/quant/unit.h"

namespace octofold::quant {

using config::CastOutput;
using config::CastParams;
using config::kUnitLength;
using config::ScaleUnit;

template <CastConfig kConfig>
class TileCast {
 public:
  struct Shared {
    union {
      // Largest magnitudes in the rows of a thread, column by column.
      alignas(16) unsigned column_magnitudes[kConfig.groups()][kConfig.lanes()][4];
      unsigned warp_magnitudes[kConfig.threads() / 32];
      // The transposed codes, 8 rows of x at a time, swizzled.
      unsigned long long transposed[kConfig.has_transposed() ? kUnitLength : 1]
                                   [kConfig.tile_rows / 8];
    };
    alignas(16) float column_operands[kUnitLength];
  };

  __device__ TileCast(const CastParams& params, Shared& shared) : params_(params), shared_(shared) {
    const unsigned tiles_across =
        static_cast<unsigned>((params.cols + kUnitLength - 1) / kUnitLength);
    const unsigned tile_row = blockIdx.x / tiles_across;
    tile_row_ = static_cast<long long>(tile_row) * kConfig.tile_rows;
    tile_col_ = static_cast<long long>(blockIdx.x - tile_row * tiles_across) * kUnitLength;
    lane_ = static_cast<int>(threadIdx.x % kConfig.lanes());
    group_ = static_cast<int>(threadIdx.x / kConfig.lanes());
    rows_ = at_most(params.rows - tile_row_ - group_ * kRows, kRows);
    cols_ = at_most(params.cols - tile_col_ - lane_ * kVector, kVector);
  }

  __device__ void run() {
    load();
    if constexpr (kPerRow) {
      if constexpr (kConfig.has_rows()) {
        const float operand = own_row();
        if constexpr (kEncodes) store_rows(operand);
      }
      if constexpr (kConfig.has_transposed()) {
        own_column();
        if constexpr (kEncodes) store_transposed(0);
      }
    } else {
      const float operand = own_tile();
      if constexpr (kEncodes && kConfig.has_rows()) store_rows(operand);
      if constexpr (kEncodes && kConfig.has_transposed()) store_transposed(operand);
    }
  }

 private:
  static constexpr int kVector = kConfig.vector();
  static constexpr int kLanes = kConfig.lanes();
  static constexpr int kRows = kConfig.rows_per_thread;
  // Whether rows of the matrices written have scales of their own.
  static constexpr bool kPerRow =
      kConfig.unit == ScaleUnit::kChannel || kConfig.unit == ScaleUnit::kBlock1x128;
  static constexpr bool kKnowsAmax = kConfig.step == CastStep::kEncode;
  static constexpr bool kEncodes = kConfig.step != CastStep::kAmax;
  using Caster = numeric::Caster<kConfig.rule.form>;
  using Input = Storage<kConfig.in>;

  __device__ void load() {
    const Input* x = static_cast<const Input*>(params_.x) +
                     (tile_row_ + group_ * kRows) * params_.x_stride + tile_col_ + lane_ * kVector;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      quant::load<Input, kConfig.vector_loads, kVector>(x + i * params_.x_stride,
                                                        i < rows_ ? cols_ : 0, x_[i]);
    }
  }

  static __device__ unsigned larger(unsigned left, unsigned right) {
    return numeric::larger<kConfig.in>(left, right);
  }

  // Largest magnitudes among kWidth neighbouring threads, all of which get them.
  template <int kWidth>
  static __device__ unsigned largest_of_lanes(unsigned magnitudes) {
#pragma unroll
    for (int distance = kWidth / 2; distance > 0; distance /= 2) {
      magnitudes = larger(magnitudes, __shfl_xor_sync(0xFFFFFFFFu, magnitudes, distance));
    }
    return magnitudes;
  }

  __device__ unsigned row_magnitudes(int row) const {
    unsigned magnitudes = numeric::magnitude<kConfig.in>(x_[row][0]);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      magnitudes = larger(magnitudes, numeric::magnitude<kConfig.in>(x_[row][i]));
    }
    return magnitudes;
  }

  // Lane i of a group owns the group's row i. Returns that row's operand.
  __device__ float own_row() const {
    const CastOutput& out = params_.row_cast;
    float* scale = out.scale + (tile_row_ + group_ * kRows + lane_) * out.scale_row_stride +
                   tile_col_ / kUnitLength * out.scale_col_stride;
    if (lane_ >= kRows || lane_ >= rows_) scale = nullptr;
    float amax = 0;
    if constexpr (kKnowsAmax) {
      if (scale != nullptr) amax = *scale;
    } else {
      unsigned magnitudes = 0;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const unsigned of_row = largest_of_lanes<kLanes>(row_magnitudes(i));
        if (lane_ == i) magnitudes = of_row;
      }
      amax = numeric::largest<kConfig.in>(magnitudes);
    }
    return own_unit<kConfig>(amax, scale);
  }

  // Thread i owns the tile's column i and leaves its operand in shared memory.
  __device__ void own_column() {
    if constexpr (!kKnowsAmax) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        unsigned magnitudes = numeric::magnitude<kConfig.in>(x_[0][i]);
#pragma unroll
        for (int row = 1; row < kRows; ++row) {
          magnitudes = larger(magnitudes, numeric::magnitude<kConfig.in>(x_[row][i]));
        }
        shared_.column_magnitudes[group_][lane_][i] = magnitudes;
      }
      __syncthreads();
    }
    const int column = static_cast<int>(threadIdx.x);
    if (column < kUnitLength) {
      const CastOutput& out = params_.transposed_cast;
      float* scale = out.scale + (tile_col_ + column) * out.scale_row_stride +
                     tile_row_ / kUnitLength * out.scale_col_stride;
      if (tile_col_ + column >= params_.cols) scale = nullptr;
      float amax = 0;
      if constexpr (kKnowsAmax) {
        if (scale != nullptr) amax = *scale;
      } else {
        unsigned magnitudes = 0;
        for (int group = 0; group < kConfig.groups(); ++group) {
          const auto* columns = reinterpret_cast<const Input*>(shared_.column_magnitudes[group]);
          magnitudes = larger(magnitudes, columns[column]);
        }
        amax = numeric::largest<kConfig.in>(magnitudes);
      }
      shared_.column_operands[column] = own_unit<kConfig>(amax, scale);
    }
    __syncthreads();
  }

  // All threads compute the cast of the tile (kTensor: of all), thread 0 owns it.
  __device__ float own_tile() {
    float amax;
    if constexpr (kKnowsAmax) {
      amax = *(kConfig.has_rows() ? params_.row_cast : params_.transposed_cast).scale;
    } else {
      unsigned magnitudes = row_magnitudes(0);
#pragma unroll
      for (int i = 1; i < kRows; ++i) magnitudes = larger(magnitudes, row_magnitudes(i));
      magnitudes = largest_of_lanes<32>(magnitudes);
      if (threadIdx.x % 32 == 0) shared_.warp_magnitudes[threadIdx.x / 32] = magnitudes;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kConfig.threads() / 32; ++i) {
        magnitudes = larger(magnitudes, shared_.warp_magnitudes[i]);
      }
      amax = numeric::largest<kConfig.in>(magnitudes);
    }
    const long long unit_row = tile_row_ / kUnitLength, unit_col = tile_col_ / kUnitLength;
    const CastOutput &row = params_.row_cast, &transposed = params_.transposed_cast;
    float* scale = row.scale + unit_row * row.scale_row_stride + unit_col * row.scale_col_stride;
    float* transposed_scale = transposed.scale + unit_col * transposed.scale_row_stride +
                              unit_row * transposed.scale_col_stride;
    float operand = 0;
    if constexpr (kConfig.has_rows()) {
      operand = own_unit<kConfig>(amax, threadIdx.x == 0 ? scale : nullptr);
    }
    if constexpr (kConfig.has_transposed()) {
      operand = own_unit<kConfig>(amax, threadIdx.x == 0 ? transposed_scale : nullptr);
    }
    return operand;
  }

  // `operand` is the tile's, or that of the row that this thread owns.
  __device__ void store_rows(float operand) const {
    const CastOutput& out = params_.row_cast;
    unsigned char* codes =
        out.codes + (tile_row_ + group_ * kRows) * out.codes_stride + tile_col_ + lane_ * kVector;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Caster cast(kPerRow ? __shfl_sync(0xFFFFFFFFu, operand, i, kLanes) : operand);
      float values[kVector];
      numeric::widen<kConfig.in>(x_[i], values);
#pragma unroll
      for (float& value : values) value = cast(value);
      unsigned words[kVector / 4];
      numeric::narrow<kConfig.out, kConfig.saturate>(values, words);
      quant::store<unsigned char, kConfig.vector_stores, kVector>(codes + i * out.codes_stride,
                                                                  i < rows_ ? cols_ : 0, words);
    }
  }

  // Codes of 8 rows in one column are 8 bytes of a row of the transpose. They are exchanged through
  // shared memory, so that 16 threads store the 128 bytes of such a row. Where they lie in it is
  // permuted from column to column: neither the threads that write (neighbouring lanes, the same
  // group) nor those that read (the same column) meet in a bank.
  __device__ void store_transposed(float operand) {
    float values[kRows][kVector];
#pragma unroll
    for (int row = 0; row < kRows; ++row) numeric::widen<kConfig.in>(x_[row], values[row]);
    if constexpr (!kPerRow && !kKnowsAmax) __syncthreads();  // the magnitudes have been read
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int column = lane_ * kVector + i;
      const Caster cast(kPerRow ? shared_.column_operands[column] : operand);
      float column_values[8];
#pragma unroll
      for (int row = 0; row < 8; ++row) column_values[row] = cast(values[row][i]);
      unsigned words[2];
      numeric::narrow<kConfig.out, kConfig.saturate>(column_values, words);
      shared_.transposed[column][group_ ^ (lane_ % 16)] =
          words[0] | static_cast<unsigned long long>(words[1]) << 32;
    }
    __syncthreads();
    const CastOutput& out = params_.transposed_cast;
    const int chunk = static_cast<int>(threadIdx.x % 16);
    const int exist = at_most(params_.rows - tile_row_ - chunk * 8, 8);
#pragma unroll
    for (int i = 0; i < kUnitLength * 16 / kConfig.threads(); ++i) {
      const int column = i * (kConfig.threads() / 16) + static_cast<int>(threadIdx.x / 16);
      const unsigned long long codes = shared_.transposed[column][chunk ^ (column / kVector % 16)];
      const unsigned words[2] = {static_cast<unsigned>(codes), static_cast<unsigned>(codes >> 32)};
      const bool exists = tile_col_ + column < params_.cols;
      quant::store<unsigned char, kConfig.vector_stores, 8>(
          out.codes + (tile_col_ + column) * out.codes_stride + tile_row_ + chunk * 8,
          exists ? exist : 0, words);
    }
  }

  const CastParams& params_;
  Shared& shared_;
  long long tile_row_, tile_col_;
  int lane_, group_;  // column and row of this thread among the threads of the tile
  int rows_, cols_;   // how much of what this thread holds exists: 0 or less, nothing
  unsigned x_[kRows][4];
};

}  // namespace octofold::quant
