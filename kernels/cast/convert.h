// Element-wise kernels: conversion between dtypes, and dequantization where there are scales.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/config/convert.h"
#include "kernels/cast/config/params.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/shared/arithmetic.h"

namespace octofold {
namespace cast {

// Without vectors, neighbours that a thread holds may belong to two units.
template <config::ConvertConfig kConfig, int kCount>
__device__ inline void multiply_by_scales(const config::ConvertParams& params, long long row,
                                          long long col, int exist, float (&values)[kCount]) {
  if (exist <= 0) return;
  const auto scale_at = [&](long long of_col) {
    return params.scale[scale_offset<kConfig.granularity>(params.scale_row_stride,
                                                          params.scale_col_stride, row, of_col)];
  };
  float scale = scale_at(col);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (!kConfig.vectors && i < exist) scale = scale_at(col + i);
    values[i] = __fmul_rn(values[i], scale);
  }
}

}  // namespace cast

template <config::ConvertConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    convert_kernel(const __grid_constant__ config::ConvertParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  constexpr int kVector = kConfig.vector();
  constexpr int kRows = kConfig.rows_per_thread;
  constexpr int kWords = kVector * size_of(kConfig.in) / 4;
  using Input = cast::Storage<kConfig.in>;
  using Output = cast::Storage<kConfig.out>;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();

  const auto tiles_across =
      static_cast<unsigned>(config::ceil_divide(params.cols, kConfig.tile_cols()));
  const unsigned tile_row = blockIdx.x / tiles_across;
  const unsigned thread_row = threadIdx.x / kConfig.threads_x;
  const unsigned thread_col = threadIdx.x % kConfig.threads_x;
  const long long row = static_cast<long long>(tile_row) * kConfig.tile_rows() + thread_row * kRows;
  const long long col =
      static_cast<long long>(blockIdx.x - tile_row * tiles_across) * kConfig.tile_cols() +
      thread_col * kVector;
  const int rows = cast::at_most(params.rows - row, kRows);
  const int cols = cast::at_most(params.cols - col, kVector);

  const Input* x = static_cast<const Input*>(params.x) + row * params.x_stride + col;
  unsigned words[kRows][kWords];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    cast::load<Input, kConfig.vectors, kVector>(x + i * params.x_stride, i < rows ? cols : 0,
                                                words[i]);
  }
  Output* out = static_cast<Output*>(params.out) + row * params.out_stride + col;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int exist = i < rows ? cols : 0;
    if constexpr (kConfig.in == kConfig.out) {  // the bits as they are, NaN payloads included
      cast::store<Output, kConfig.vectors, kVector>(out + i * params.out_stride, exist, words[i]);
    } else {
      float values[kVector];
      numeric::widen<kConfig.in>(words[i], values);
      if constexpr (kConfig.scaled) {
        cast::multiply_by_scales<kConfig>(params, row + i, col, exist, values);
      }
      unsigned converted[kVector * sizeof(Output) / 4];
      numeric::narrow<kConfig.out, kConfig.saturate>(values, converted);
      cast::store<Output, kConfig.vectors, kVector>(out + i * params.out_stride, exist, converted);
    }
  }
}

}  // namespace octofold
