// From the sums of the mainloop to the values of D: scales that are constant along K, C, bias.
#pragma once

#include "kernels/config/gemm_config.h"
#include "kernels/config/gemm_params.h"
#include "kernels/epilogue/element.h"

namespace octofold {

using config::Addend;
using config::GemmConfig;
using config::GemmParams;
using config::GemmScaling;

template <GemmConfig kConfig, Addend kAddend>
__device__ inline float load_addend(const void* data, long long index) {
  return load_element<kAddend == Addend::kFloat32 ? DType::kFloat32 : kConfig.out>(data, index);
}

// Whether D's values are just the sums, so that nobody needs to know where they belong.
template <GemmConfig kConfig>
inline constexpr bool kSumsAreFinal = config::has_block_scales(kConfig.scaling) &&
                                      kConfig.c == Addend::kNone && kConfig.bias == Addend::kNone;

// What two neighbouring columns of D contribute, the same for all rows: read once.
template <GemmConfig kConfig>
struct ColumnTerms {
  int column;
  int existing;  // how many of the two lie inside of D
  float scale[2] = {1.0f, 1.0f};
  float bias[2] = {};

  __device__ ColumnTerms(const GemmParams& params, int column_)
      : column(column_), existing(min(max(params.n - column_, 0), 2)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i >= existing) continue;
      if constexpr (kConfig.scaling == GemmScaling::kChannel) {
        scale[i] = params.scale_b[(column + i) * params.scale_b_row_stride];
      }
      if constexpr (kConfig.bias != Addend::kNone) {
        bias[i] = load_addend<kConfig, kConfig.bias>(params.bias, column + i);
      }
    }
  }
};

// The same of a row. Nothing outside of D is read.
template <GemmConfig kConfig>
struct RowTerms {
  bool exists;
  float scale = 1.0f;
  const void* c;
  long long c_row;  // index of the row's first element of C

  __device__ RowTerms(const GemmParams& params, int row)
      : exists(row < params.m), c(params.c), c_row(row * params.c_stride) {
    if constexpr (kConfig.scaling == GemmScaling::kTensor) {
      scale = *params.scale_a * *params.scale_b;
    }
    if constexpr (kConfig.scaling == GemmScaling::kChannel) {
      if (exists) scale = params.scale_a[row * params.scale_a_row_stride];
    }
  }

  __device__ float2 finish(const ColumnTerms<kConfig>& columns, float first, float second) const {
    if constexpr (kSumsAreFinal<kConfig>) return {first, second};
    float values[2] = {first, second};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kConfig.scaling == GemmScaling::kTensor) values[i] *= scale;
      if constexpr (kConfig.scaling == GemmScaling::kChannel) values[i] *= scale * columns.scale[i];
      if constexpr (kConfig.c != Addend::kNone) {
        if (exists && i < columns.existing) {
          values[i] += load_addend<kConfig, kConfig.c>(c, c_row + columns.column + i);
        }
      }
      if constexpr (kConfig.bias != Addend::kNone) values[i] += columns.bias[i];
    }
    return {values[0], values[1]};
  }
};

}  // namespace octofold
