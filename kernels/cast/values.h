// The values that a source's cast would read, written as they are: a vector to a thread.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/config/convert.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/sources/activation.h"
#include "kernels/cast/sources/activation_gradient.h"
#include "kernels/ptx/control.h"
#include "kernels/shared/arithmetic.h"

namespace octofold {

// The target's codes are the numbers.
template <config::ValuesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    values_kernel(const __grid_constant__ config::CastParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  constexpr int kVector = kConfig.vector();
  using Number = cast::Storage<kConfig.in>;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const long long across = config::ceil_divide(params.cols, kVector);
  const long long index = static_cast<long long>(blockIdx.x) * kConfig.threads() + threadIdx.x;
  const long long row = index / across, col = (index - row * across) * kVector;
  if (row >= params.rows) return;
  const int exist = cast::at_most(params.cols - col, kVector);
  const cast::Source<kConfig.source, kConfig.in, kConfig.vectors> source(params, row, col);
  unsigned words[4];
  source.read(0, 0, exist, words);
  Number* out = reinterpret_cast<Number*>(params.row_target.codes);
  cast::store<Number, kConfig.vectors, kVector>(out + row * params.row_target.codes_stride + col,
                                                exist, words);
}

}  // namespace octofold
