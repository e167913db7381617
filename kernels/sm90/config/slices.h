// Slices of sums, which blocks of a cluster that share a tile send each other.
#pragma once

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

// Each block sums a part of K, finishes some of the instruction's columns, by eights, and sends its
// sums of the others to their owners. A thread has sub_tiles · columns / 2 sums.
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

}  // namespace octofold::config
