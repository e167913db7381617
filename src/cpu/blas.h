// The FP32 product that the reference is built on: OpenBLAS, on the calling thread.
#pragma once

#include <cstdint>
#include <string>

namespace octofold::cpu {

/// D[m, n] = A[m, k] · B[n, k]ᵀ in FP32, row-major with these row strides. Safe to call from any
/// number of threads at once. At most 4096 rows of B. Throws Error(kOutOfMemory).
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_stride,
              const float* b, std::int64_t b_stride, float* d, std::int64_t d_stride);

/// Name, version and chosen kernels of the BLAS.
std::string blas_description();

}  // namespace octofold::cpu
