// Level 1: a thread for each element of D. Nothing is shared, so every operand comes from the
// caches as often as it is used, a byte at a time, and every product is an instruction of its own.
#pragma once

#include "examples/kernels/problem.h"
#include "kernels/ptx/convert.h"

namespace octofold::ladder::level_1 {

inline constexpr Launch kLaunch{
    .threads = 256, .shared_bytes = 0, .tile_rows = 16, .tile_columns = 16};

__device__ inline float decode(unsigned char code) {
  return ptx::float_of_float16(ptx::float16_pair_of_e4m3(code));  // e4m3 fits into FP16
}

__global__ void __launch_bounds__(kLaunch.threads) kernel(const __grid_constant__ Problem problem) {
  const int tiles_in_row = config::ceil_divide(problem.n, kLaunch.tile_columns);
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int row = block / tiles_in_row * kLaunch.tile_rows + thread / kLaunch.tile_columns;
  const int column = block % tiles_in_row * kLaunch.tile_columns + thread % kLaunch.tile_columns;
  if (row >= problem.m || column >= problem.n) return;

  const unsigned char* a = problem.a + static_cast<long long>(row) * problem.k;
  const unsigned char* b = problem.b + static_cast<long long>(column) * problem.k;
  float sum = 0;
  for (int first = 0; first < problem.k; first += kDepth) {
    float partial = 0;
    for (int k = first; k < min(first + kDepth, problem.k); ++k) {
      partial += decode(a[k]) * decode(b[k]);
    }
    const int k_block = first / kDepth;
    sum += partial * problem.a_scale(row, k_block) * problem.b_scale(column, k_block);
  }
  problem.d[static_cast<long long>(row) * problem.n + column] =
      static_cast<unsigned short>(ptx::bfloat16_pair(sum, 0));
}

}  // namespace octofold::ladder::level_1
