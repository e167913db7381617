// The gradient by the weights of combine: of each slot of a token the sum of the products of two
// rows. A block of threads to a token, whose sums are added in a fixed order.
#pragma once

#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/routing/config/params.h"
#include "kernels/routing/config/routing.h"
#include "kernels/routing/rows.h"

namespace octofold {
namespace routing {

using config::CombineGradientConfig;
using config::CombineGradientParams;

template <CombineGradientConfig kConfig>
class CombineGradient {
  static constexpr DType kGradient = kConfig.gradient, kIn = kConfig.in;
  static constexpr int kVector = kConfig.vector();
  static constexpr int kVectors = kConfig.kVectorsPerThread;
  static constexpr int kSlots = kConfig.kSlots;
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kWarps = kThreads / 32;
  using Columns = ThreadColumns<kThreads, kVector>;

 public:
  struct Shared {
    float sums[2][kSlots][kWarps];  // of some slots, and of the next
  };

  __device__ CombineGradient(const CombineGradientParams& params, Shared& shared)
      : params_(params), shared_(shared), token_(blockIdx.x) {}

  __device__ void run() {
    const int thread = static_cast<int>(threadIdx.x);
    for (int first = 0; first < params_.slots; first += kSlots) {
      float sums[kSlots] = {};
      add(first, sums);
      auto& shared = shared_.sums[first / kSlots % 2];
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        for (int distance = 16; distance > 0; distance /= 2) {
          sums[i] = __fadd_rn(sums[i], __shfl_xor_sync(0xFFFFFFFFu, sums[i], distance));
        }
        if (thread % 32 == 0) shared[i][thread / 32] = sums[i];
      }
      __syncthreads();
      if (thread >= kSlots || first + thread >= params_.slots) continue;
      float sum = 0;
      for (int warp = 0; warp < kWarps; ++warp) sum = __fadd_rn(sum, shared[thread][warp]);
      params_.weights_gradient[token_ * params_.weights_gradient_stride + first + thread] = sum;
    }
  }

 private:
  // Adds what this thread's columns give to the sums of kSlots slots from `first` on.
  __device__ void add(int first, float (&sums)[kSlots]) const {
    const SlotRows<kSlots> slots(params_.positions + token_ * params_.positions_stride,
                                 params_.slots, first, params_.rows);
    for (long long col = 0; col < params_.cols; col += kThreads * kVectors * kVector) {
      const Columns columns(col, params_.cols);
      unsigned gradient[kVectors][kVector * size_of(kGradient) / 4];
      unsigned rows[kSlots][kVectors][kVector * size_of(kIn) / 4];
      load_row<kGradient, kConfig.vectors, kVectors, kVector>(
          params_.gradient, token_ * params_.gradient_stride, columns, true, gradient);
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        load_row<kIn, kConfig.vectors, kVectors, kVector>(
            params_.y, slots.rows[i] * params_.y_stride, columns, slots.exist[i], rows[i]);
      }
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        float left[kVector];
        numeric::widen<kGradient>(gradient[j], left);
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
          if (!slots.exist[i]) continue;  // the gradient may be infinite
          float right[kVector];
          numeric::widen<kIn>(rows[i][j], right);
#pragma unroll
          for (int n = 0; n < kVector; ++n) sums[i] = __fmaf_rn(left[n], right[n], sums[i]);
        }
      }
    }
  }

  const CombineGradientParams& params_;
  Shared& shared_;
  long long token_;
};

}  // namespace routing

template <config::CombineGradientConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    combine_gradient_kernel(const __grid_constant__ config::CombineGradientParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  __shared__ typename routing::CombineGradient<kConfig>::Shared shared;
  routing::CombineGradient<kConfig>(params, shared).run();
}

}  // namespace octofold
