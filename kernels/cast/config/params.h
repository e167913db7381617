// The parameters of the cast kernels: the host passes one struct, by value. Strides count elements.
#pragma once

#include "kernels/cast/config/column_reductions.h"
#include "kernels/cast/config/norm_form.h"
#include "kernels/shared/arithmetic.h"

namespace octofold::config {

// One FP8 matrix that is written, and its scales, written or read: that of unit (row, col) at
// scale[row * scale_row_stride + col * scale_col_stride]. A unit of a tensor or channel has no
// second coordinate, that of a tensor none at all: the strides are 0 then. (Of tensors in a stack,
// the row is the matrix.)
struct CastTarget {
  unsigned char* codes;
  long long codes_stride;
  float* scale;
  long long scale_row_stride;
  long long scale_col_stride;
};

// The largest magnitudes of the units of a target, found by the units' first coordinates.
struct GivenAmax {
  const float* data;
  long long stride;
};

// The matrix [rows, cols] that is cast, what it is made from (source.h), and what is written.
struct CastParams {
  const void* x;  // [rows, cols]; of gated activations gate and up, [rows, 2 · their columns]
  long long x_stride;
  const float* x_scale;  // of CastSource::scaled, found as in CastTarget
  long long x_scale_row_stride;
  long long x_scale_col_stride;
  const void* gradient;  // by the activation, [rows, its columns]
  long long gradient_stride;
  const float* rstd;  // of what is normed: [rows], as mean
  const float* mean;
  NormOperands norm;
  long long rows;
  long long cols;
  CastTarget row_target;         // [rows, cols]
  CastTarget transposed_target;  // [cols, rows]
  ColumnReductionParams columns;
  // The groups of a transpose (group_bounds.h): offsets have [groups + 1] entries.
  const int* offsets;
  int groups;
  GroupLayout group_layout;
  // The flat places that rows are gathered from: [rows], `slots` places to a row of x.
  const int* sources;
  const float* factors;  // one for each place; null without
  unsigned places;       // from here on there is no row
  Divisor slots;
  // The matrices of a stack: `rows` counts those of all, and transposes, [cols, matrix_rows], stand
  // one below another, as do their scales.
  long long matrices;
  long long matrix_rows;
  int matrix_tiles;  // of 128 rows, that a matrix has below each other
  Divisor by_matrix_tiles;
  // If matrices without rows to be multiplied are skipped: where these rows begin, [matrices + 1].
  const int* used;
  // Largest magnitudes that are given, for ScaleStep::kTake.
  GivenAmax row_amax;
  GivenAmax transposed_amax;
};

struct ConvertParams {
  const void* x;  // [rows, cols]
  long long x_stride;
  void* out;  // likewise
  long long out_stride;
  long long rows;
  long long cols;
  const float* scale;  // of ConvertConfig::scaled, found as in CastTarget
  long long scale_row_stride;
  long long scale_col_stride;
};

// Casts of many matrices by one launch: what the host passes to the kernel, by value. Nothing of it
// is kept in device memory, so a batch has no life of its own, and a captured graph holds all that
// it needs.

// A job casts one matrix, or a stack of them: the fields of CastParams by the same names.
struct CastJob {
  const void* x;
  long long x_stride;
  long long rows;
  long long cols;
  CastTarget row_target;
  CastTarget transposed_target;
  long long matrices;
  long long matrix_rows;
  int matrix_tiles;
  Divisor by_matrix_tiles;
};

struct CastBatchParams {
  // The number of jobs that fit into the 4096 bytes of parameters that every driver takes.
  static constexpr int kMostJobs = 27;
  static constexpr int kNoBlock = 0x7FFFFFFF;

  CastJob jobs[kMostJobs];
  // The number of the first block of threads of each job; behind the last job kNoBlock.
  int first_block[kMostJobs];

  // Returns the number of the job that a block works for.
  constexpr int job_of(int block) const {
    int job = 0;
    for (int step = 16; step > 0; step /= 2) {
      const int next = job + step;
      if (next < kMostJobs && first_block[next] <= block) job = next;
    }
    return job;
  }
};
static_assert(sizeof(CastBatchParams) <= 4096);

}  // namespace octofold::config
