// The sum, for each slot of a token, of the products of two things of its row: an activation, and
// the gradient by it. A warp to a slot, whose sums are added in a fixed order.
#pragma once

#include "kernels/numeric/activation.h"
#include "kernels/numeric/elements.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/routing/config/params.h"
#include "kernels/routing/config/routing.h"
#include "kernels/routing/rows.h"

namespace octofold {
namespace routing {

using config::ActivationDotsConfig;
using config::ActivationDotsParams;

template <ActivationDotsConfig kConfig>
class ActivationDots {
  static constexpr DType kIn = kConfig.in;
  static constexpr bool kGated = is_gated(kConfig.activation);
  static constexpr int kVector = kConfig.vector();
  static constexpr int kVectors = kConfig.kVectorsPerThread;
  using T = numeric::Storage<kIn>;
  using Words = unsigned[kVectors][4];

 public:
  __device__ explicit ActivationDots(const ActivationDotsParams& params) : params_(params) {}

  __device__ void run() const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const long long slot =
        static_cast<long long>(blockIdx.x) * kConfig.kSlots + static_cast<int>(threadIdx.x / 32);
    if (slot >= params_.tokens * params_.slots) return;
    const long long token = slot / params_.slots;
    const int place = static_cast<int>(slot - token * params_.slots);
    const int row = params_.positions[token * params_.positions_stride + place];
    float sum = row >= 0 && row < params_.rows ? sum_of(row, lane) : 0.0f;
    for (int distance = 16; distance > 0; distance /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, distance));
    }
    if (lane != 0) return;
    if (params_.c != nullptr) sum = __fadd_rn(params_.c[token * params_.c_stride + place], sum);
    params_.dots[token * params_.dots_stride + place] = sum;
  }

 private:
  // The sum of what this lane's columns give. All vectors of a step are on their way before the
  // first is waited for.
  __device__ float sum_of(long long row, int lane) const {
    const T* gradients = static_cast<const T*>(params_.gradient) + row * params_.gradient_stride;
    const T* gates = static_cast<const T*>(params_.x) + row * params_.x_stride;
    float sum = 0;
    for (long long step = 0; step < params_.cols; step += 32 * kVectors * kVector) {
      const long long col = step + lane * kVector;
      Words gradient, gate, up;
      load(gradients, col, gradient);
      load(gates, col, gate);
      if constexpr (kGated) load(gates + params_.cols, col, up);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float by_value[kVector], x[kVector], factors[kVector] = {};
        numeric::widen<kIn>(gradient[i], by_value);
        numeric::widen<kIn>(gate[i], x);
        if constexpr (kGated) numeric::widen<kIn>(up[i], factors);
#pragma unroll
        for (int n = 0; n < kVector; ++n) {  // zeros behind the last column make zeros
          const float value = numeric::activate<kConfig.activation>(x[n], factors[n]);
          sum = __fmaf_rn(by_value[n], value, sum);
        }
      }
    }
    return sum;
  }

  __device__ void load(const T* row, long long col, Words& words) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const long long at = col + i * (32 * kVector);
      numeric::load<T, kConfig.vectors, kVector>(row + at, at_most(params_.cols - at, kVector),
                                                 words[i]);
    }
  }

  const ActivationDotsParams& params_;
};

}  // namespace routing

template <config::ActivationDotsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    activation_dots_kernel(const __grid_constant__ config::ActivationDotsParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  routing::ActivationDots<kConfig>(params).run();
}

}  // namespace octofold
