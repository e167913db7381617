// The transpose of bytes: its kernel's configuration, and what the host passes.
#pragma once

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

struct TransposeConfig {
  bool vector_loads = true;  // whether rows of x can be accessed in whole vectors
  bool vector_stores = true;

  static constexpr const char* kHeader = "kernels/cast/transpose.h";
  static constexpr const char* kKernel = "transpose_kernel";
  static constexpr const char* kTypeName = "octofold::config::TransposeConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("vector_loads", vector_loads);
    field("vector_stores", vector_stores);
  }
  friend constexpr bool operator==(const TransposeConfig&, const TransposeConfig&) = default;

  static constexpr int kVector = 16;              // bytes that a thread has of a row
  static constexpr int kTile = 128;               // rows and columns of a block of threads
  static constexpr int kLanes = kTile / kVector;  // threads along a row
  static constexpr int kRows = 4;                 // of a thread, one below another
  static constexpr int kSharedBytes = kTile * kTile;

  static constexpr int kBlocks = 8;  // that a multiprocessor holds: as many threads as it can

  constexpr int threads() const { return kLanes * (kTile / kRows); }
  constexpr const char* invalid_reason() const { return nullptr; }
};

// The tiles of a matrix, and of matrices one after another: two below each other come before the
// next column, because they write to the same lines of the transpose.
struct TransposeTiles {
  static constexpr int kBand = 2;

  unsigned down, across;
  Divisor by_tiles;  // of a matrix
  Divisor by_band;   // of kBand tiles below each other, all along

  struct Place {
    unsigned matrix, down, across;
  };

  // rows, cols > 0, of tiles that a launch can have.
  static constexpr TransposeTiles of(long long rows, long long cols) {
    const auto down = static_cast<unsigned>(ceil_divide(rows, TransposeConfig::kTile));
    const auto across = static_cast<unsigned>(ceil_divide(cols, TransposeConfig::kTile));
    return {down, across, Divisor::of(down * across), Divisor::of(kBand * across)};
  }
  constexpr Place at(unsigned index) const {
    const unsigned matrix = by_tiles.quotient(index);
    index -= matrix * down * across;
    const unsigned band = by_band.quotient(index), first = band * kBand;
    index -= band * kBand * across;
    if (first + 1 == down) return {matrix, first, index};  // the last one, of one row
    return {matrix, first + index % kBand, index / kBand};
  }
};

// The parameters for matrices [rows, cols], one below another, whose transposes, [cols, rows], are
// so too. Strides count bytes.
struct TransposeParams {
  const unsigned char* x;
  long long x_stride;
  unsigned char* out;
  long long out_stride;
  long long rows;
  long long cols;
  TransposeTiles tiles;
};

}  // namespace octofold::config
