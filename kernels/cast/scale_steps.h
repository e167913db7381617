// The steps that set scales before and after they hold the largest magnitudes of their units: the
// first and the last step of a cast of four, or of three.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/sources/gathered.h"
#include "kernels/cast/unit.h"
#include "kernels/ptx/control.h"
#include "kernels/shared/group_bounds.h"

namespace octofold {
namespace cast {

using config::ScaleStepConfig;

// True if the unit of rows at `row` is written, provided that there is such a unit.
template <ScaleStepConfig kConfig>
__device__ inline bool is_written(const config::CastParams& params, long long row) {
  if constexpr (kConfig.format.granularity == Granularity::kTensor) return true;
  if constexpr (kConfig.grouped) {
    const config::GroupBounds rows =
        config::grouped_rows(params.offsets, params.groups, params.rows);
    if (row < rows.begin || row >= rows.end) return false;
  }
  if constexpr (kConfig.gathered) {
    return row < params.rows && comes_from_somewhere(params, params.sources[row]);
  }
  return true;
}

// Updates the scale of unit `index`, of `of_matrix` to a matrix: units of a tensor or of rows.
template <ScaleStepConfig kConfig>
__device__ inline void update_scale(const config::CastParams& params,
                                    const config::CastTarget& target, const config::GivenAmax& amax,
                                    long long index, long long of_matrix) {
  if (index >= (kConfig.stacked ? params.matrices : 1) * of_matrix) return;
  if constexpr (kConfig.skips_unused) {
    if (!is_used(params.used, index / of_matrix)) return;
  }
  float* scale = target.scale + index * target.scale_row_stride;
  if constexpr (kConfig.step == config::ScaleStep::kClear) {
    *scale = 0;
  } else if constexpr (kConfig.step == config::ScaleStep::kTake) {
    *scale = fabsf(amax.data[index * amax.stride]);
  } else {
    write_scale<kConfig.format>(scale, *scale);
  }
}

// Does the step for the scales of one block of threads.
template <ScaleStepConfig kConfig>
__device__ inline void step_scales(const config::CastParams& params, int block) {
  constexpr bool kTensor = kConfig.format.granularity == Granularity::kTensor;
  const long long index = static_cast<long long>(block) * kConfig.threads() + threadIdx.x;
  if constexpr (kConfig.to_rows) {
    if (is_written<kConfig>(params, index)) {
      const long long of_matrix = kConfig.stacked ? params.matrix_rows : params.rows;
      update_scale<kConfig>(params, params.row_target, params.row_amax, index,
                            kTensor ? 1 : of_matrix);
    }
  }
  if constexpr (kConfig.to_transposed) {
    update_scale<kConfig>(params, params.transposed_target, params.transposed_amax, index,
                          kTensor ? 1 : params.cols);
  }
}

}  // namespace cast

template <config::ScaleStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    scale_step_kernel(const __grid_constant__ config::CastParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  cast::step_scales<kConfig>(params, static_cast<int>(blockIdx.x));
}

}  // namespace octofold
