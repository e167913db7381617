// Tensor maps: how TMA finds its way in a matrix.
#pragma once

#include <cstdint>

#include "octofold/vocabulary.h"

#include "cuda/driver.h"
#include "kernels/config/gemm_params.h"

namespace octofold::cuda {

/// A row-major matrix in device memory, and the boxes that TMA moves: their rows lie in shared
/// memory under the swizzle of their width (32, 64 or 128 bytes).
struct TensorMapSource {
  const void* data = nullptr;
  DType dtype = DType::kE4M3;  // FP8 travels as bytes
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // in elements
  int box_rows = 0;
  int box_cols = 0;
};

/// Why TMA cannot address the matrix, for a message, or null: address and row stride have to be
/// multiples of 16 bytes, and there has to be an element.
const char* tma_obstacle(const void* data, DType dtype, std::int64_t rows, std::int64_t cols,
                         std::int64_t row_stride);

/// The same for a matrix that TMA is to write. It does so in units of 16 bytes (seen on an H200; no
/// manual says so): what lies behind rows that end within one would be overwritten.
const char* tma_store_obstacle(const void* data, DType dtype, std::int64_t rows, std::int64_t cols,
                               std::int64_t row_stride);

/// Elements outside of the matrix are read as 0 and not written. Throws Error(kInternal) for what
/// tma_obstacle() names.
config::TensorMap encode_tensor_map(const Driver& driver, const TensorMapSource& source);

}  // namespace octofold::cuda
