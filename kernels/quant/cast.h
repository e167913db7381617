// The cast kernel: one for each step, input and output type, rule and so on of a CastConfig.
#pragma once

#include "kernels/config/cast_config.h"
#include "kernels/config/cast_params.h"
#include "kernels/ptx/control.h"
#include "kernels/quant/cast_rows.h"
#include "kernels/quant/cast_tiles.h"
#include "kernels/quant/cast_wide_rows.h"
#include "kernels/quant/unit.h"

namespace octofold {
namespace quant {

// Clears or finishes the scale of unit `index`, among those of a tensor, or of rows.
template <CastConfig kConfig>
__device__ void update_scale(const config::CastOutput& out, long long index, long long count) {
  if (index >= count) return;
  float* scale = out.scale + index * out.scale_row_stride;
  if constexpr (kConfig.step == CastStep::kClear) {
    *scale = 0;
  } else {
    own_unit<kConfig>(*scale, scale);
  }
}

template <CastConfig kConfig>
__device__ void update_scales(const CastParams& params) {
  constexpr bool kTensor = kConfig.unit == Granularity::kTensor;
  const long long index = static_cast<long long>(blockIdx.x) * kConfig.threads() + threadIdx.x;
  if constexpr (kConfig.has_rows()) {
    update_scale<kConfig>(params.row_cast, index, kTensor ? 1 : params.rows);
  }
  if constexpr (kConfig.has_transposed()) {
    update_scale<kConfig>(params.transposed_cast, index, kTensor ? 1 : params.cols);
  }
}

}  // namespace quant

template <config::CastConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.resident_blocks())
    cast_kernel(const __grid_constant__ config::CastParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  if constexpr (kConfig.step == config::CastStep::kClear ||
                kConfig.step == config::CastStep::kFinish) {
    quant::update_scales<kConfig>(params);
  } else if constexpr (kConfig.step == config::CastStep::kRows) {
    __shared__ typename quant::RowCast<kConfig>::Shared shared;
    quant::RowCast<kConfig>(params, shared).run();
  } else if constexpr (kConfig.step == config::CastStep::kWideRows) {
    __shared__ typename quant::WideRowCast<kConfig>::Shared shared;
    quant::WideRowCast<kConfig>(params, shared).run();
  } else {
    __shared__ typename quant::TileCast<kConfig>::Shared shared;
    quant::TileCast<kConfig>(params, shared).run();
  }
}

}  // namespace octofold
