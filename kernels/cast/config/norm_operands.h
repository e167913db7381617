// The addresses and strides of the vectors of a NormForm.
#pragma once

namespace octofold::config {

struct NormOperands {
  const void* weight;  // [cols], as bias
  const void* bias;
  const void* scale;  // [batches, cols], as shift; strides count elements
  long long scale_stride;
  const void* shift;
  long long shift_stride;
  long long rows_per_batch;
};

}  // namespace octofold::config
