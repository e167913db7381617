// Runs of elements to and from FP32, and the element-wise conversion.
#pragma once

#include <cstdint>

#include "octofold/tensor.h"

namespace octofold::cpu {

/// out[i] = element `offset + i · stride` of an array of `dtype` at `data`, for i in [0, count).
void load(const void* data, DType dtype, std::int64_t offset, std::int64_t stride,
          std::int64_t count, float* out);

/// Writes values[0, count) from element `offset` on.
void store(const float* values, std::int64_t count, void* data, DType dtype, std::int64_t offset,
           Overflow overflow);

/// octofold::convert_dtype on checked arguments of rank 2.
void convert_dtype(const TensorView& x, const MutableTensorView& out, Overflow overflow);

}  // namespace octofold::cpu
