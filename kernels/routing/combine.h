// The weighted sum of the rows that a token's slots went to. A block of threads has one token, and
// a thread the same two vectors of 16 bytes of all of its rows, in order of the slots. Rows of four
// slots are on their way at one time, and threads exchange nothing.
#pragma once

#include "kernels/numeric/elements.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/global_memory.h"
#include "kernels/routing/config/params.h"
#include "kernels/routing/config/routing.h"
#include "kernels/routing/rows.h"

namespace octofold {
namespace routing {

using config::CombineConfig;
using config::CombineParams;

template <CombineConfig kConfig>
class Combine {
  static constexpr DType kIn = kConfig.in, kOut = kConfig.out;
  static constexpr int kVector = kConfig.vector();
  static constexpr int kVectors = kConfig.kVectorsPerThread;
  static constexpr int kSlots = kConfig.kSlots;
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kInWords = kVector * size_of(kIn) / 4;
  static constexpr int kOutWords = kVector * size_of(kOut) / 4;
  using Output = numeric::Storage<kOut>;
  using Columns = ThreadColumns<kThreads, kVector>;
  using Sums = float[kVectors][kVector];

 public:
  __device__ explicit Combine(const CombineParams& params) : params_(params), token_(blockIdx.x) {}

  __device__ void run() const {
    for (long long col = 0; col < params_.cols; col += kThreads * kVectors * kVector) {
      const Columns columns(col, params_.cols);
      Sums sums;
      begin(columns, sums);
      for (int first = 0; first < params_.slots; first += kSlots) add(columns, first, sums);
      store(columns, sums);
    }
  }

 private:
  // C, or nothing. It may be what this very thread writes in the end.
  __device__ void begin(const Columns& columns, Sums& sums) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (!kConfig.adds) {
#pragma unroll
        for (float& sum : sums[i]) sum = 0;
      } else {
        const Output* c = static_cast<const Output*>(params_.c) + token_ * params_.c_stride;
        unsigned words[kOutWords] = {};
        if constexpr (kConfig.vectors) {
          if (columns.exist(i) > 0) ptx::load_own(c + columns.column(i), words);
        } else {
          numeric::load<Output, false, kVector>(c + columns.column(i), columns.exist(i), words);
        }
        numeric::widen<kOut>(words, sums[i]);
      }
    }
  }

  __device__ void add(const Columns& columns, int first, Sums& sums) const {
    const SlotRows<kSlots> slots(params_.positions + token_ * params_.positions_stride,
                                 params_.slots, first, params_.rows);
    float weights[kSlots];
    if constexpr (kConfig.weighted) {
      const float* of_token = params_.weights + token_ * params_.weights_stride + first;
#pragma unroll
      for (int i = 0; i < kSlots; ++i) weights[i] = slots.exist[i] ? of_token[i] : 0;
    }
    unsigned words[kSlots][kVectors][kInWords];
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      load_row<kIn, kConfig.vectors, kVectors, kVector>(params_.y, slots.rows[i] * params_.y_stride,
                                                        columns, slots.exist[i], words[i]);
    }
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (!slots.exist[i]) continue;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        float values[kVector];
        numeric::widen<kIn>(words[i][j], values);
#pragma unroll
        for (int n = 0; n < kVector; ++n) {
          if constexpr (kConfig.weighted) values[n] = __fmul_rn(weights[i], values[n]);
          sums[j][n] = __fadd_rn(sums[j][n], values[n]);
        }
      }
    }
  }

  __device__ void store(const Columns& columns, const Sums& sums) const {
    Output* out = static_cast<Output*>(params_.out) + token_ * params_.out_stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      unsigned words[kOutWords];
      numeric::narrow<kOut, false>(sums[i], words);
      numeric::store<Output, kConfig.vectors, kVector>(out + columns.column(i), columns.exist(i),
                                                       words);
    }
  }

  const CombineParams& params_;
  long long token_;
};

}  // namespace routing

template <config::CombineConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    combine_kernel(const __grid_constant__ config::CombineParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  routing::Combine<kConfig>(params).run();
}

}  // namespace octofold
