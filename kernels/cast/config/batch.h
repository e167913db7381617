// Casts of many matrices by one launch: what the host passes to the kernel, by value. Nothing of it
// is kept in device memory, so a batch has no life of its own, and a captured graph holds all that
// it needs.
#pragma once

#include "kernels/cast/config/params.h"
#include "kernels/shared/arithmetic.h"

namespace octofold::config {

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
