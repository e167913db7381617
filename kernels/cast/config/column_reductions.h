// Reductions of the columns of what is cast over its rows, from the read that the cast takes
// anyway. A tile of a cast leaves those of its rows in a workspace; a second kernel goes on from
// there, always in the same order.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

// The reductions that are wanted of each column.
struct ColumnReductions {
  bool sums = false;  // in FP32
  bool amax = false;  // the largest magnitude

  static constexpr const char* kTypeName = "octofold::config::ColumnReductions";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("sums", sums);
    field("amax", amax);
  }
  friend constexpr bool operator==(const ColumnReductions&, const ColumnReductions&) = default;

  constexpr bool any() const { return sums || amax; }
};

// Rows of the matrix to a row of the workspace, of sums or of magnitudes: those of a tile.
inline constexpr int kReducedRows = kScaleBlock;

// From the workspace to the results.
struct ColumnReductionConfig {
  ColumnReductions columns{};

  static constexpr const char* kHeader = "kernels/cast/column_reductions.h";
  static constexpr const char* kKernel = "column_reduction_kernel";
  static constexpr const char* kTypeName = "octofold::config::ColumnReductionConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("columns", columns);
  }
  friend constexpr bool operator==(const ColumnReductionConfig&,
                                   const ColumnReductionConfig&) = default;

  static constexpr int kColumns = 32;  // of a block
  static constexpr int kGroups = 8;    // of threads, each with a share of the rows
  constexpr int threads() const { return kColumns * kGroups; }

  constexpr const char* invalid_reason() const {
    return columns.any() ? nullptr : "column reductions have to be sums, magnitudes, or both";
  }
};

// The parameters of both. Each is null where it is not wanted.
struct ColumnReductionParams {
  float* partial_sums;  // [ceil(rows / kReducedRows), cols], as partial_amax
  float* partial_amax;
  float* sums;  // [cols], as amax
  float* amax;
};

}  // namespace octofold::config
