// The gradients by a norm's operands, from the sums that each block of the backward kernel has left
// of its rows: dy · n (products) and dy (offsets). Groups of threads add shares of them, each in
// order, and then the shares are added by halves: the same input gives the same bits.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/norm_operands.h"
#include "kernels/norm/config/norm.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/shared/arithmetic.h"

namespace octofold {
namespace norm {

using config::NormGradientConfig;
using config::NormOperand;

// One element of an operand; `absent` where there is none.
template <NormOperand kOperand, DType kIn>
__device__ inline float operand_at(const void* data, long long index, float absent) {
  if constexpr (kOperand == NormOperand::kNone) {
    return absent;
  } else {
    constexpr DType kType = cast::kTypeOf<kOperand, kIn>;
    const unsigned word = static_cast<const cast::Storage<kType>*>(data)[index];
    float value[1];
    numeric::widen<kType>(&word, value);
    return value[0];
  }
}

template <NormGradientConfig kConfig>
class NormGradient {
  static constexpr int kColumns = kConfig.columns;
  static constexpr int kGroups = kConfig.groups();

 public:
  struct Shared {
    float products[kGroups][kColumns], offsets[kGroups][kColumns];
  };

  __device__ NormGradient(const config::NormBackwardParams& params, Shared& shared)
      : params_(params), shared_(shared) {
    const long long across = config::ceil_divide(params.cols, kColumns);
    batch_ = blockIdx.x / across;  // 0 where all batches are summed
    lane_ = static_cast<int>(threadIdx.x % kColumns);
    group_ = static_cast<int>(threadIdx.x / kColumns);
    col_ = (blockIdx.x - batch_ * across) * kColumns + lane_;
  }

  __device__ void run() {
    add_share();
#pragma unroll
    for (int half = kGroups / 2; half > 0; half /= 2) {
      __syncthreads();
      if (group_ >= half) continue;
      add_other(shared_.products, half);
      add_other(shared_.offsets, half);
    }
    if (group_ != 0 || col_ >= params_.cols) return;
    const float product = shared_.products[0][lane_], offset = shared_.offsets[0][lane_];
    if constexpr (kConfig.by_batch) {
      const float weight =
          operand_at<kConfig.form.weight, kConfig.in>(params_.operands.weight, col_, 1);
      const float bias = operand_at<kConfig.form.bias, kConfig.in>(params_.operands.bias, col_, 0);
      if (params_.dscale != nullptr) {
        params_.dscale[batch_ * params_.dscale_stride + col_] =
            __fadd_rn(__fmul_rn(product, weight), __fmul_rn(offset, bias));
      }
      if (params_.dshift != nullptr) params_.dshift[batch_ * params_.dshift_stride + col_] = offset;
    } else {
      if (params_.dweight != nullptr) params_.dweight[col_] = product;
      if (params_.dbias != nullptr) params_.dbias[col_] = offset;
    }
  }

 private:
  __device__ void add_other(float (&sums)[kGroups][kColumns], int half) const {
    float& own = sums[group_][lane_];
    own = __fadd_rn(own, sums[group_ + half][lane_]);
  }

  __device__ void add_share() {
    const long long count =
        kConfig.by_batch ? params_.blocks_per_batch : params_.batches * params_.blocks_per_batch;
    const long long first = batch_ * params_.blocks_per_batch;
    const long long begin = first + count * group_ / kGroups;
    const long long end = first + count * (group_ + 1) / kGroups;
    float product = 0, offset = 0;
    if (col_ < params_.cols) {
#pragma unroll 8
      for (long long i = begin; i < end; ++i) {
        const long long at = i * params_.cols + col_;
        const float factor = factor_of(i);
        if constexpr (kConfig.sums_products) {
          product = __fmaf_rn(params_.products[at], factor, product);
        }
        if constexpr (kConfig.sums_offsets) {
          offset = __fmaf_rn(params_.offsets[at], factor, offset);
        }
      }
    }
    shared_.products[group_][lane_] = product;
    shared_.offsets[group_][lane_] = offset;
  }

  // The factor that rows of block `i` were multiplied with behind weight and bias.
  __device__ float factor_of(long long i) const {
    if constexpr (kConfig.by_batch || kConfig.form.scale == NormOperand::kNone) return 1;
    const long long batch =
        static_cast<unsigned>(i) / static_cast<unsigned>(params_.blocks_per_batch);
    return __fadd_rn(1.0f,
                     operand_at<kConfig.form.scale, kConfig.in>(
                         params_.operands.scale, batch * params_.operands.scale_stride + col_, 0));
  }

  const config::NormBackwardParams& params_;
  Shared& shared_;
  long long batch_, col_;
  int lane_, group_;
};

}  // namespace norm

template <config::NormGradientConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    norm_gradient_kernel(const __grid_constant__ config::NormBackwardParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  __shared__ typename norm::NormGradient<kConfig>::Shared shared;
  norm::NormGradient<kConfig>(params, shared).run();
}

}  // namespace octofold
