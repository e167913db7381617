// Operands and scales of one stage of K, from global to shared memory.
#pragma once

#include "kernels/mma/config/config.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::mma {

using config::kMmaDepth;
using config::MmaGemmConfig;

inline constexpr int kUnitBytes = 16;
inline constexpr int kUnitsOfRow = kMmaDepth / kUnitBytes;

// The place of a unit of a row: rows of 128 bytes, in which units change places from row to row, so
// that eight rows of one unit, which ldmatrix reads at a time, lie in all banks.
__device__ inline unsigned place_of(int row, int unit) {
  return static_cast<unsigned>(row * kMmaDepth + (unit ^ row % kUnitsOfRow) * kUnitBytes);
}

// 16 bytes of a row, of which the first `existing` are there; zeros follow.
template <int kLoadBytes>
__device__ inline void copy_unit(unsigned target, const unsigned char* source, int existing) {
  if constexpr (kLoadBytes == 16) {
    ptx::copy_unit_async(target, source, static_cast<unsigned>(existing));
  } else if constexpr (kLoadBytes == 4) {
#pragma unroll
    for (int at = 0; at < kUnitBytes; at += 4) {
      const int bytes = min(max(existing - at, 0), 4);
      ptx::copy_word_async(target + at, bytes > 0 ? source + at : source,
                           static_cast<unsigned>(bytes));
    }
  } else {
#pragma unroll
    for (int at = 0; at < kUnitBytes; at += 4) {
      unsigned word = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (at + i < existing) word |= static_cast<unsigned>(source[at + i]) << 8 * i;
      }
      ptx::store_shared_word(target + at, word);
    }
  }
}

// A thread's part of the rows of one operand: unit thread % 8 of every so many rows. Rows that are
// not there, and what lies behind K, become zeros.
template <MmaGemmConfig kConfig, int kRows>
class OperandCopy {
 public:
  // `first`: of the tile's rows in the operand, of which so many are there. `depth`: where K ends.
  __device__ OperandCopy(const config::OperandParams& operand, int first, int existing, int depth)
      : stride_(operand.stride),
        unit_(static_cast<int>(threadIdx.x) % kUnitsOfRow),
        row_(static_cast<int>(threadIdx.x) / kUnitsOfRow),
        existing_rows_(existing),
        depth_(depth),
        data_(operand.data),
        source_(operand.data + (first + row_) * operand.stride + kUnitBytes * unit_),
        place_(place_of(row_, unit_)) {}

  // `target`: where the rows begin in the stage that holds K from `k` on. `skipped`: rows between
  // the first one and the first of these.
  __device__ void copy(unsigned target, int k, int skipped = 0) const {
    const int in_row = min(max(depth_ - k - kUnitBytes * unit_, 0), kUnitBytes);
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
      const int existing = row_ + i * kStep < existing_rows_ ? in_row : 0;
      const unsigned char* source =
          existing > 0 ? source_ + ((skipped + i * kStep) * stride_ + k) : data_;
      copy_unit<kConfig.load_bytes>(target + place_ + i * kStep * kMmaDepth, source, existing);
    }
  }

 private:
  // Rows that all threads copy at a time: a multiple of 8, so that the swizzle is the same.
  static constexpr int kStep = kConfig.threads() / kUnitsOfRow;

  long long stride_;
  int unit_;
  int row_;
  int existing_rows_;
  int depth_;
  const unsigned char* data_;    // an address that may be read
  const unsigned char* source_;  // of the thread's first unit of K
  unsigned place_;
};

// Scales that vary along K, one for each of kRows rows, also where rows share one. `first`: the
// tile's first row, counted from the group's first where each group has scales of its own; so many
// rows are there.
template <MmaGemmConfig kConfig, int kRows, Granularity kScales>
__device__ inline void copy_scales(const config::ScaleParams& scale, unsigned target, int group,
                                   int first, int existing, int k) {
  if constexpr (varies_along_k(kScales)) {
    constexpr int kSharers = config::rows_per_scale(kScales);
    const float* const of_group = scale.data + group * scale.group_stride;
#pragma unroll
    for (int begin = 0; begin < kRows; begin += kConfig.threads()) {
      const int place = begin + static_cast<int>(threadIdx.x), row = first + place;
      if (place >= kRows) continue;
      const bool exists = place < existing;
      const float* source = of_group;
      if (exists) source += row / kSharers * scale.row_stride + k / kMmaDepth * scale.k_stride;
      ptx::copy_word_async(target + 4 * static_cast<unsigned>(place), source, exists ? 4 : 0);
    }
  }
}

// A thread's copies of a tile's stages.
template <MmaGemmConfig kConfig>
class StageCopy {
 public:
  __device__ StageCopy(const config::GemmParams& params, const config::Tile& tile)
      : params_(params),
        tile_(tile),
        existing_rows_(tile.row_end - tile.row),
        existing_columns_(tile.column_end - tile.column),
        rows_(params.rows, tile.operand_row, existing_rows_, tile.k_end),
        columns_(params.columns, tile.operand_column, existing_columns_, tile.k_end) {}

  // K from `k` on, into the stage that begins here.
  __device__ void copy(unsigned stage, int k) const {
    constexpr int kTileRows = kConfig.tile_rows, kTileColumns = kConfig.tile_columns;
    const unsigned columns = stage + kTileRows * kMmaDepth;
    const unsigned row_scales = stage + kConfig.scales_offset();
    const unsigned column_scales = row_scales + 4 * kConfig.row_scales();
    rows_.copy(stage, k);
    copy_scales<kConfig, kTileRows, kConfig.form.a.scales>(
        params_.rows.scale, row_scales, tile_.group, tile_.operand_row, existing_rows_, k);
#pragma unroll
    for (int part = 0; part < kConfig.parts(); ++part) {
      const int skipped = part * tile_.column_end;  // the gates
      columns_.copy(columns + part * kTileColumns * kMmaDepth, k, skipped);
      copy_scales<kConfig, kTileColumns, kConfig.form.b.scales>(
          params_.columns.scale, column_scales + 4 * part * kTileColumns, tile_.group,
          tile_.column + skipped, existing_columns_, k);
    }
  }

 private:
  const config::GemmParams& params_;
  const config::Tile& tile_;
  int existing_rows_, existing_columns_;
  OperandCopy<kConfig, kConfig.tile_rows> rows_;
  OperandCopy<kConfig, kConfig.tile_columns> columns_;
};

}  // namespace octofold::mma
