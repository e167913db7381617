// Boxes of FP32, which threads write, and read, in
#pragma once

#include "kernels/sm90/store_tile.h"

namespace octofold::sm90 {

template <int kRowBytes>
struct BoxOf<DType::kFloat32, kRowBytes> {
  struct Pairs {
    float2 upper_left, lower_left, upper_right, lower_right;
  };

  static __device__ void write(unsigned rows, int first, float2 upper_left, float2 lower_left,
                               float2 upper_right, float2 lower_right) {
    const unsigned left = place(rows, first, 0), right = place(rows, first, 1);
    ptx::store_shared(left, upper_left);
    ptx::store_shared(left + 8 * kRowBytes, lower_left);
    ptx::store_shared(right, upper_right);
    ptx::store_shared(right + 8 * kRowBytes, lower_right);
  }

  static __device__ Pairs read(unsigned rows, int first) {
    const unsigned left = place(rows, first, 0), right = place(rows, first, 1);
    return {ptx::load_shared_pair(left), ptx::load_shared_pair(left + 8 * kRowBytes),
            ptx::load_shared_pair(right), ptx::load_shared_pair(right + 8 * kRowBytes)};
  }

  // The lane's pair of the upper eight rows, in the left eight columns or (`right` 1) in the right
  // eight. That of the lower eight rows lies eight rows below.
  static __device__ unsigned place(unsigned rows, int first, int right) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / 4, swizzle = row * kRowBytes / 128 % (kRowBytes / 16);
    const int chunk = first / 4 + lane % 4 / 2 + 2 * right;
    return rows + row * kRowBytes + 16 * (chunk ^ swizzle) + 8 * (lane % 2);
  }
};

}  // namespace octofold::sm90
