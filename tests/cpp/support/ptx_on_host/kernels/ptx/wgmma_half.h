// wgmma.h beside this.
#pragma once

#include "kernels/ptx/wgmma.h"

namespace octofold::ptx {

template <int kWidth>
struct WgmmaHalf {
  template <DType kType, bool kTransposed = false>
  static void issue(float (&d)[kWidth / 2], const unsigned (&a)[4], unsigned long long b,
                    bool accumulate) {
    ptx::issue({d, kWidth, a, 0, b, kTransposed, accumulate, kType, kType});
  }
  template <DType kType, bool kTransposed = false>
  static void issue(float (&d)[kWidth / 2], unsigned long long a, unsigned long long b,
                    bool accumulate) {
    ptx::issue({d, kWidth, nullptr, a, b, kTransposed, accumulate, kType, kType});
  }
};

}  // namespace octofold::ptx
