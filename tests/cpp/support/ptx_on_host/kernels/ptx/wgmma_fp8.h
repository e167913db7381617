// wgmma.h beside this.
#pragma once

#include "kernels/ptx/wgmma.h"

namespace octofold::ptx {

template <int kWidth>
struct WgmmaFp8 {
  template <DType kA, DType kB>
  static void issue(float (&d)[kWidth / 2], unsigned long long a, unsigned long long b,
                    bool accumulate) {
    ptx::issue({d, kWidth, nullptr, a, b, false, accumulate, kA, kB});
  }
};

}  // namespace octofold::ptx
