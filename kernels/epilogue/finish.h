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
  return load_element<kAddend == Addend::kFloat32 ? Element::kFloat32 : kConfig.out>(data, index);
}

// Whether D's values are just the sums, so that nobody needs to know where they belong.
template <GemmConfig kConfig>
inline constexpr bool kSumsAreFinal = config::has_block_scales(kConfig.scaling) &&
                                      kConfig.c == Addend::kNone && kConfig.bias == Addend::kNone;

// Finishes pairs of neighbouring columns of one row of D. Nothing outside of D is read.
template <GemmConfig kConfig>
class RowFinisher {
 public:
  __device__ RowFinisher(const GemmParams& params, int row)
      : params_(params), row_(row), exists_(row < params.m) {
    if constexpr (kConfig.scaling == GemmScaling::kTensor)
      scale_ = *params.scale_a * *params.scale_b;
    if constexpr (kConfig.scaling == GemmScaling::kChannel) {
      scale_ = exists_ ? params.scale_a[row * params.scale_a_row_stride] : 0.0f;
    }
  }

  __device__ float2 operator()(int column, float first, float second) const {
    return {finished(column, first), finished(column + 1, second)};
  }

 private:
  __device__ float finished(int column, float sum) const {
    if constexpr (kSumsAreFinal<kConfig>) return sum;
    if (!exists_ || column >= params_.n) return 0.0f;
    float value = sum;
    if constexpr (kConfig.scaling == GemmScaling::kTensor) value *= scale_;
    if constexpr (kConfig.scaling == GemmScaling::kChannel) {
      value *= scale_ * params_.scale_b[column * params_.scale_b_row_stride];
    }
    if constexpr (kConfig.c != Addend::kNone) {
      value += load_addend<kConfig, kConfig.c>(params_.c, row_ * params_.c_stride + column);
    }
    if constexpr (kConfig.bias != Addend::kNone) {
      value += load_addend<kConfig, kConfig.bias>(params_.bias, column);
    }
    return value;
  }

  const GemmParams& params_;
  int row_;
  bool exists_;
  float scale_ = 1.0f;
};

}  // namespace octofold
