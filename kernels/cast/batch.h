// The kernels of casts for many matrices, each of which a job says: a block of threads finds its
// job by its number, and then does what it does in a cast of that matrix alone.
#pragma once

#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/scale_steps.h"
#include "kernels/cast/tiles.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/control.h"

namespace octofold {
namespace cast {

// Writes the parameters of a cast that a job has; one thread of the block calls it.
__device__ inline void write_params(const config::CastJob& job, config::CastParams& params) {
  params.x = job.x;
  params.x_stride = job.x_stride;
  params.rows = job.rows;
  params.cols = job.cols;
  params.row_target = job.row_target;
  params.transposed_target = job.transposed_target;
  params.matrices = job.matrices;
  params.matrix_rows = job.matrix_rows;
  params.matrix_tiles = job.matrix_tiles;
  params.by_matrix_tiles = job.by_matrix_tiles;
}

// Returns the block's number among those of its job. Leaves the job's parameters in shared memory:
// all threads together.
__device__ inline int block_of_job(const config::CastBatchParams& batch,
                                   config::CastParams& params) {
  const int block = static_cast<int>(blockIdx.x);
  const int job = batch.job_of(block);
  if (threadIdx.x == 0) write_params(batch.jobs[job], params);
  __syncthreads();
  return block - batch.first_block[job];
}

// Casts a tile of a job, by the threads of a block, which share `params` and `shared`.
template <config::TileCastConfig kConfig>
__device__ inline void cast_tile_of_job(const config::CastBatchParams& batch,
                                        config::CastParams& params,
                                        typename TileCast<kConfig>::Shared& shared) {
  static_assert(kConfig.stacked && !kConfig.skips_unused && !kConfig.is_staged());
  const int tile = block_of_job(batch, params);
  ptx::wait_for_earlier_kernels();
  Tiles<kConfig> tiles{{params, 0, tile}};
  load<kConfig>(params, tiles);
  TileCast<kConfig>(params, shared, tiles[0]).run();
}

template <config::ScaleStepConfig kConfig>
__device__ inline void step_scales_of_job(const config::CastBatchParams& batch,
                                          config::CastParams& params) {
  static_assert(kConfig.stacked && !kConfig.skips_unused &&
                kConfig.step != config::ScaleStep::kTake);
  const int block = block_of_job(batch, params);
  ptx::wait_for_earlier_kernels();
  step_scales<kConfig>(params, block);
}

}  // namespace cast

template <config::TileCastConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(),
                                  ptx::resident_blocks(kConfig.resident_blocks()))
    tile_batch_kernel(const __grid_constant__ config::CastBatchParams batch) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  __shared__ config::CastParams params;
  __shared__ typename cast::TileCast<kConfig>::Shared shared;
  cast::cast_tile_of_job<kConfig>(batch, params, shared);
}

template <config::ScaleStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    scale_batch_kernel(const __grid_constant__ config::CastBatchParams batch) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  __shared__ config::CastParams params;
  cast::step_scales_of_job<kConfig>(batch, params);
}

}  // namespace octofold
