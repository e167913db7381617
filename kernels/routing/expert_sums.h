// The sums of the rows of each expert, times the weights of their slots: the gradients by biases. A
// warp adds every kWarps-th row of an expert, and the sums of warps are added in their order.
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

using config::ExpertSumsConfig;
using config::ExpertSumsParams;

template <ExpertSumsConfig kConfig>
class ExpertSums {
  static constexpr DType kIn = kConfig.in;
  static constexpr int kVector = kConfig.vector();
  static constexpr int kColumns = kConfig.columns();
  static constexpr int kHalves = kConfig.halves();
  static constexpr int kWarps = kConfig.kWarps, kRows = kConfig.kRows;
  using T = numeric::Storage<kIn>;
  using Words = unsigned[4];
  using Sums = float[kHalves][kVector];

 public:
  struct Shared {
    float sums[kWarps][kHalves][kColumns];
  };

  __device__ ExpertSums(const ExpertSumsParams& params, Shared& shared)
      : params_(params), shared_(shared) {
    const long long tiles = (params.cols + kColumns - 1) / kColumns;
    expert_ = blockIdx.x / tiles;
    first_col_ = blockIdx.x % tiles * kColumns;
  }

  __device__ void run() const {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    Sums sums = {};
    const long long begin = bound(expert_), end = bound(expert_ + 1);
    for (long long row = begin + warp * kRows; row < end; row += kWarps * kRows) {
      add(row, end, first_col_ + lane * kVector, sums);
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int n = 0; n < kVector; ++n) {
        shared_.sums[warp][half][lane * kVector + n] = sums[half][n];
      }
    }
    __syncthreads();
    for (int i = thread; i < kHalves * kColumns; i += kConfig.threads()) {
      const int half = i / kColumns, col = i % kColumns;
      if (first_col_ + col >= params_.cols) continue;
      float sum = 0;
      for (int part = 0; part < kWarps; ++part) {
        sum = __fadd_rn(sum, shared_.sums[part][half][col]);
      }
      params_.sums[expert_ * params_.sums_stride + half * params_.cols + first_col_ + col] = sum;
    }
  }

 private:
  // The row that an expert begins with, one of those that there are whatever the offsets say.
  __device__ long long bound(long long expert) const {
    const long long row = params_.offsets[expert];
    return row < 0 ? 0 : row < params_.rows ? row : params_.rows;
  }

  // Adds kRows rows, as far as they are before `end`. All are on their way before the first is
  // waited for.
  __device__ void add(long long row, long long end, long long col, Sums& sums) const {
    float weights[kRows];
    Words gradient[kRows], gate[kRows] = {}, up[kRows] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int source = row + i < end ? params_.sources[row + i] : -1;
      const long long token = source / params_.slots;
      const bool exists = source >= 0 && source < params_.rows;
      weights[i] =
          exists ? params_.weights[token * params_.weights_stride + source - token * params_.slots]
                 : 0.0f;
      const int columns = exists ? at_most(params_.cols - col, kVector) : 0;
      const auto* gradients = static_cast<const T*>(params_.gradient);
      load(gradients + (kConfig.activated ? row + i : token) * params_.gradient_stride + col,
           columns, gradient[i]);
      if constexpr (kConfig.activated) {
        const T* gates = static_cast<const T*>(params_.x) + (row + i) * params_.x_stride + col;
        load(gates, columns, gate[i]);
        if constexpr (kHalves == 2) load(gates + params_.cols, columns, up[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float values[kHalves][kVector];
      work_out(gradient[i], gate[i], up[i], values);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int n = 0; n < kVector; ++n) {
          sums[half][n] = __fmaf_rn(weights[i], values[half][n], sums[half][n]);
        }
      }
    }
  }

  // A row's values; zeros make zeros.
  __device__ static void work_out(const Words& gradient, const Words& gate, const Words& up,
                                  float (&values)[kHalves][kVector]) {
    numeric::widen<kIn>(gradient, values[0]);
    if constexpr (kConfig.activated) {
      float gates[kVector], ups[kVector];
      numeric::widen<kIn>(gate, gates);
      numeric::widen<kIn>(up, ups);
#pragma unroll
      for (int n = 0; n < kVector; ++n) {
        const float2 both =
            numeric::activation_gradients<kConfig.activation>(values[0][n], gates[n], ups[n]);
        values[0][n] = both.x;
        if constexpr (kHalves == 2) values[1][n] = both.y;
      }
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        Words rounded;
        numeric::narrow<kIn, false>(values[half], rounded);
        numeric::widen<kIn>(rounded, values[half]);
      }
    }
  }

  __device__ static void load(const T* data, int exist, Words& words) {
    numeric::load<T, kConfig.vectors, kVector>(data, exist, words);
  }

  const ExpertSumsParams& params_;
  Shared& shared_;
  long long expert_, first_col_;
};

}  // namespace routing

template <config::ExpertSumsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    expert_sums_kernel(const __grid_constant__ config::ExpertSumsParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  __shared__ typename routing::ExpertSums<kConfig>::Shared shared;
  routing::ExpertSums<kConfig>(params, shared).run();
}

}  // namespace octofold
