// Stages of K between producers and consumers: how TMA fills them, the position in their ring, the
// scales that they hold of an operand, and their order; and the slices of sums that take their
// place in a cluster. For the host and the kernels.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

// A CUtensorMap: opaque, made by cuTensorMapEncodeTiled.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

// The position of one side in a ring of stages: the stage, and the parity of its barriers' phase. A
// consumer waits for `full` with this parity, a producer for `empty` with the other one: the first
// round finds every stage empty.
template <int kStages>
struct RingPosition {
  int stage = 0;
  unsigned parity = 0;

  constexpr void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Slices of sums, which blocks of a cluster that share a tile send each other. Each block sums a
// part of K, finishes some of the instruction's columns, by eights, and sends its sums of the
// others to their owners. A thread has sub_tiles · columns / 2 sums.
struct SliceShape {
  int split_k = 1;
  int columns = 8;
  int sub_tiles = 1;
  int threads = 128;

  // Block i owns the columns from i times this on.
  constexpr int owned_columns() const { return round_up(ceil_divide(columns, split_k), 8); }
  // Bytes that a block sends another one.
  constexpr int bytes() const { return owned_columns() / 2 * 4 * sub_tiles * threads; }
};

constexpr int common_divisor(int left, int right) {
  while (right != 0) {
    const int rest = left % right;
    left = right;
    right = rest;
  }
  return left;
}

// Rows of an operand that share a scale of a stage; 0 where stages hold none.
constexpr int rows_per_scale(Granularity scales) {
  const GranularityRow row = row_of(scales);
  return row.varies_along_k() ? row.rows : 0;  // others wait for the finished sum
}

// Scales of an operand that a stage of a tile with `extent` of its rows holds: those that it can
// touch, as tiles begin at multiples of `extent`.
constexpr int scales_per_stage(Granularity scales, int extent) {
  const int rows = rows_per_scale(scales);
  if (rows == 0) return 0;
  return ceil_divide(rows - common_divisor(extent, rows) + extent, rows);
}

// The place of a tile column's scale among those of a stage, if each has one of its own: a
// thread's, of columns 8j + 2q and 8j + 2q + 1 for its q, one after another, to be read four at a
// time. The q's begin at distances at which no two meet in a bank.
struct ColumnScaleOrder {
  int quarter;  // from the first of one q to that of the next

  constexpr explicit ColumnScaleOrder(int columns)
      : quarter(columns / 4 + (columns / 4 % 16 == 0 ? 4 : 0)) {}
  constexpr int place(unsigned column) const {
    return static_cast<int>(column % 8 / 2) * quarter +
           static_cast<int>(column / 8 * 2 + column % 2);
  }
  constexpr int count() const { return 4 * quarter; }
};

}  // namespace octofold::config
