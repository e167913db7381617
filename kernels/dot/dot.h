// The dot product of two vectors in two kernels: each block of 256 threads sums a part of 8192
// elements or a multiple, and one block adds the parts, at most 1024. A thread takes 16 bytes of
// the wider type at a time, with two or four such pieces of each vector on their way (32 registers
// for FP8, so that a multiprocessor is full). Block scales multiply the sum of a vector of
// elements. Each thread, warp and block adds in a fixed order, and K alone decides the number of
// parts.
#pragma once

#include "kernels/dot/config/dot.h"
#include "kernels/numeric/decode_pairs.h"
#include "kernels/numeric/elements.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"

namespace octofold {
namespace dot_product {

using config::DotConfig;
using config::DotParams;

// kCount numbers in registers as FP32, exactly.
template <DType kType, int kCount>
__device__ inline void values_of(const unsigned* words, float (&values)[kCount]) {
  if constexpr (is_fp8(kType)) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const unsigned pair = numeric::float16_pair_of_fp8<kType>(words[i / 4], i / 2 % 2);
      values[i] = ptx::float_of_float16(pair);
      values[i + 1] = ptx::float_of_float16(pair >> 16);
    }
  } else {
    numeric::widen<kType>(words, values);
  }
}

// The sum over all threads of a block, for thread 0.
template <int kThreads>
class BlockSum {
  static constexpr int kWarps = kThreads / 32;

 public:
  struct Shared {
    float sums[kWarps];
  };

  static __device__ float of(float sum, Shared& shared) {
    const unsigned thread = threadIdx.x;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, distance));
    }
    if (thread % 32 == 0) shared.sums[thread / 32] = sum;
    __syncthreads();
    if (thread != 0) return sum;
    for (int warp = 1; warp < kWarps; ++warp) sum = __fadd_rn(sum, shared.sums[warp]);
    return sum;
  }
};

// The result, from the sum of all that scales of blocks have multiplied.
__device__ inline void store_result(const DotParams& params, float sum) {
  if (params.size > 0) {
    float factor = 1;
    if (params.a_scale != nullptr && !params.a_blocks) factor = *params.a_scale;
    if (params.b_scale != nullptr && !params.b_blocks) factor = __fmul_rn(factor, *params.b_scale);
    sum = __fmul_rn(sum, factor);
  }
  *params.out = sum;
}

template <DotConfig kConfig>
class PartOfDot {
  static constexpr int kVector = kConfig.vector();
  static constexpr int kVectors = kConfig.vectors_per_thread();
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kStep = kThreads * kVector;
  using A = numeric::Storage<kConfig.a>;
  using B = numeric::Storage<kConfig.b>;
  static constexpr int kAWords = kVector * static_cast<int>(sizeof(A)) / 4;
  static constexpr int kBWords = kVector * static_cast<int>(sizeof(B)) / 4;

 public:
  __device__ explicit PartOfDot(const DotParams& params) : params_(params) {}

  __device__ float sum_of_thread() const {
    const long long first = blockIdx.x * params_.span;
    const long long end = min(first + params_.span, params_.size);
    long long at = first + static_cast<long long>(threadIdx.x) * kVector;
    float sums[kVectors] = {};
    for (; at + ((kVectors - 1) * kStep + kVector) <= end; at += kVectors * kStep) {
      unsigned a[kVectors][kAWords], b[kVectors][kBWords];
      float scales[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        load<kConfig.vectors>(at + i * kStep, kVector, a[i], b[i]);
        scales[i] = scale_of(at + i * kStep);
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) sums[i] = added(a[i], b[i], scales[i], sums[i]);
    }
    // The last part of the span goes vector by vector, the last of which may end with it.
    for (; at < end; at += kStep) {
      unsigned a[kAWords], b[kBWords];
      if (end - at >= kVector) {
        load<kConfig.vectors>(at, kVector, a, b);
      } else {
        load<false>(at, static_cast<int>(end - at), a, b);
      }
      sums[0] = added(a, b, scale_of(at), sums[0]);
    }
    float sum = sums[0];
#pragma unroll
    for (int i = 1; i < kVectors; ++i) sum = __fadd_rn(sum, sums[i]);
    return sum;
  }

 private:
  // Elements from `at` on, zeros in place of those beyond the first `exist`.
  template <bool kInVectors>
  __device__ void load(long long at, int exist, unsigned (&a)[kAWords],
                       unsigned (&b)[kBWords]) const {
    numeric::load<A, kInVectors, kVector>(static_cast<const A*>(params_.a) + at, exist, a);
    numeric::load<B, kInVectors, kVector>(static_cast<const B*>(params_.b) + at, exist, b);
  }

  // The scale, or product of both scales, of the block of 128 that this element belongs to.
  __device__ float scale_of(long long element) const {
    const long long block = element / kScaleBlock;
    float scale = 1;
    if constexpr (kConfig.a_blocks) scale = params_.a_scale[block * params_.a_scale_stride];
    if constexpr (kConfig.b_blocks) {
      scale = __fmul_rn(scale, params_.b_scale[block * params_.b_scale_stride]);
    }
    return scale;
  }

  static __device__ float added(const unsigned* a, const unsigned* b, float scale, float sum) {
    float left[kVector], right[kVector];
    values_of<kConfig.a>(a, left);
    values_of<kConfig.b>(b, right);
    constexpr bool kScaled = kConfig.a_blocks || kConfig.b_blocks;
    float partial = kScaled ? 0 : sum;
#pragma unroll
    for (int i = 0; i < kVector; ++i) partial = __fmaf_rn(left[i], right[i], partial);
    return kScaled ? __fmaf_rn(partial, scale, sum) : partial;
  }

  const DotParams& params_;
};

}  // namespace dot_product

template <config::DotConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    dot_kernel(const __grid_constant__ config::DotParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  using Sum = dot_product::BlockSum<kConfig.threads()>;
  __shared__ typename Sum::Shared shared;
  const float sum = Sum::of(dot_product::PartOfDot<kConfig>(params).sum_of_thread(), shared);
  if (threadIdx.x != 0) return;
  if constexpr (kConfig.alone) {
    dot_product::store_result(params, sum);
  } else {
    params.part_sums[blockIdx.x] = sum;
  }
}

template <config::DotPartsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    add_dot_parts_kernel(const __grid_constant__ config::DotParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  using Sum = dot_product::BlockSum<kConfig.threads()>;
  __shared__ typename Sum::Shared shared;
  float sum = 0;
  for (int part = static_cast<int>(threadIdx.x); part < params.parts; part += kConfig.threads()) {
    sum = __fadd_rn(sum, params.part_sums[part]);
  }
  sum = Sum::of(sum, shared);
  if (threadIdx.x == 0) dot_product::store_result(params, sum);
}

}  // namespace octofold
