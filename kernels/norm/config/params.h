// The parameters of norm kernels: the host passes one struct, by value. Strides count elements.
#pragma once

#include "kernels/cast/config/norm_form.h"
#include "kernels/cast/config/params.h"

namespace octofold::config {

// Forward.
struct NormParams {
  const void* x;  // [rows, cols], as residual and sum
  long long x_stride;
  const void* residual;
  long long residual_stride;
  void* sum;  // x + residual: may be the residual's memory
  long long sum_stride;
  long long rows;
  long long cols;
  float epsilon;
  float* rstd;  // [rows]
  float* mean;  // [rows]
  NormOperands operands;
  CastTarget target;  // [rows, cols]
  void* y;            // [rows, cols], of x's type
  long long y_stride;
};

// Backward: dx, and in the workspace sums over the rows of each block.
struct NormBackwardParams {
  const void* dy;  // [rows, cols], as x, addend and dx
  long long dy_stride;
  const void* x;
  long long x_stride;
  const void* addend;  // the gradient of the residual, added to dx
  long long addend_stride;
  void* dx;
  long long dx_stride;
  long long rows;
  long long cols;
  const float* rstd;  // [rows]
  const float* mean;  // [rows]
  NormOperands operands;

  // A batch is `blocks_per_batch` blocks of `rows_per_block` rows (its last one may have fewer, or
  // none). Block `i` sums dy · n to products[i * cols], and dy to offsets[i * cols].
  long long batches;
  long long rows_per_block;
  long long blocks_per_batch;
  float* products;
  float* offsets;
  float* dweight;  // [cols]; null where it is not wanted, as the others
  float* dbias;
  float* dscale;  // [batches, cols]
  long long dscale_stride;
  float* dshift;
  long long dshift_stride;
};

}  // namespace octofold::config
