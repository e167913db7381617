// The FP8 GEMM for Hopper: D[m, n] = A[m, k] · B[n, k]ᵀ, scaled (+ C) (+ bias), or the codes of a
// gated activation of two such products. A may be cast to FP8 on its way; rows of A, or K, may be
// in groups whose sizes are in device memory.
//
// As many blocks of threads as run at one time stay for the whole product and walk over tiles of D;
// those that share a tile, each with a slice of K, have one. A block's last warpgroup keeps a ring
// of stages in shared memory filled: operands by TMA, scales by small asynchronous copies. The
// other warpgroups multiply. When a tile is summed they leave it in shared memory, from where a
// warp of the loading warpgroup sends it out, and go on with the next. docs/kernels.md tells the
// whole story.
#pragma once

#include "kernels/sm90/config/gemm.h"
#include "kernels/sm90/load.h"
#include "kernels/sm90/load_dynamic.h"
#include "kernels/sm90/load_unaligned.h"
#include "kernels/sm90/load_words.h"
#include "kernels/sm90/math.h"
#include "kernels/sm90/slices.h"
#include "kernels/sm90/store.h"
#include "kernels/sm90/store_gated.h"
#include "kernels/sm90/store_onto_c.h"
#include "kernels/sm90/walk.h"

namespace octofold {
namespace sm90 {

template <Sm90GemmConfig kConfig>
__device__ void load_and_store(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
  const int warp = (static_cast<int>(threadIdx.x) - kConfig.math_threads()) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (warp == 2) {
    load_row_scales(params, smem);
  } else if (warp == 3) {
    load_column_scales(params, smem);
  } else if constexpr (kConfig.load == config::OperandLoad::kWords) {
    load_operands_by_words(params, smem, warp < 2 ? warp : warp - 2);
  } else if constexpr (kConfig.load == config::OperandLoad::kThreads) {
    UnalignedCopy<kConfig>(params, smem, warp < 2 ? warp : warp - 2).run();
  } else if (lane == 0) {
    if (warp == 0) load_operands_by_tma(params, smem);
    if constexpr (kConfig.store == config::OutputStore::kTma) {
      if (warp == 1) store_staged_tiles(params, smem, slice_of_block<kConfig>());
    } else if constexpr (kConfig.stores_onto_c()) {
      if (warp == 1) move_boxes(params, smem);
    }
  }
}

template <Sm90GemmConfig kConfig>
__device__ void cast_input(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
  if constexpr (kConfig.dynamic.exists) {
    constexpr int kRegisters = kConfig.second_load_registers();
    if constexpr (kRegisters > kConfig.registers_at_start()) {
      ptx::grow_registers<kRegisters>();
    } else {
      ptx::shrink_registers<kRegisters>();
    }
    const int warp = (static_cast<int>(threadIdx.x) - kConfig.math_threads()) / 32 - 4;
    DynamicCast<kConfig>(params, smem, warp).run();
  }
}

template <Sm90GemmConfig kConfig>
__device__ void multiply(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
  constexpr bool kStaged = kConfig.store == config::OutputStore::kTma;
  const int rank = slice_of_block<kConfig>();
  auto walk = walk_of<kConfig>(params);
  if (!walk.has_tile()) return;
  PieceStore<kConfig> pieces(smem);
  BoxSums<kConfig> boxes(smem);
  MathWarpgroup<kConfig> math(smem, walk.has_stages());
  for (unsigned parity = 1; walk.has_tile(); walk.advance(), parity ^= 1) {
    const Tile tile = walk.tile();
    Sums<kConfig> sums;
    math.sum_tile(tile, walk.stages_follow(), sums);
    if constexpr (kConfig.cluster_depth > 1) {
      ptx::cluster_wait();
      add_slices(smem, rank, sums);
    }
    if constexpr (kStaged) {
      ptx::mbarrier_wait(smem.output_empty(), parity);
      if constexpr (kConfig.gated.exists) {
        stage_gated(params, smem, tile, sums);
      } else if constexpr (kConfig.swapped) {
        stage_columns(params, smem, tile, rank, sums);
      } else {
        stage_rows(params, smem, tile, rank, sums);
      }
      ptx::fence_proxy_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(smem.output_full());
    } else if constexpr (kConfig.stores_onto_c()) {
      boxes.add(params, tile, sums);
    } else if constexpr (kConfig.store == config::OutputStore::kTmaPieces) {
      pieces.store(params, tile, rank, sums);
    } else {
      store_directly<kConfig>(params, tile, rank, sums);
    }
  }
  if constexpr (kConfig.store == config::OutputStore::kTmaPieces) pieces.finish();
}

}  // namespace sm90

template <config::Sm90GemmConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_per_multiprocessor)
    gemm_kernel(const __grid_constant__ config::Sm90GemmParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  extern __shared__ __align__(config::kSwizzleAlignment) unsigned char memory[];
  const sm90::SharedMemory<kConfig> smem{ptx::opaque(ptx::shared_address(memory))};
  if (threadIdx.x < 32) smem.init_barriers();
  if (threadIdx.x == kConfig.math_threads()) {
    if constexpr (kConfig.load == config::OperandLoad::kTma) {
      ptx::prefetch_tensor_map(&params.rows_map);
      ptx::prefetch_tensor_map(&params.last_rows_map);
      if constexpr (!kConfig.dynamic.exists) ptx::prefetch_tensor_map(&params.columns_map);
    }
    if constexpr (kConfig.store != config::OutputStore::kDirect) {
      ptx::prefetch_tensor_map(&params.out_map);
      if constexpr (kConfig.stores_onto_c()) ptx::prefetch_tensor_map(&params.c_map);
    }
  }
  // Who multicasts needs the others' barriers at once; who shares a tile when it is summed.
  constexpr bool kMulticasts = kConfig.cluster_rows * kConfig.cluster_columns > 1;
  if constexpr (kMulticasts) {
    ptx::cluster_sync();
  } else {
    if constexpr (kConfig.cluster_depth > 1) ptx::cluster_arrive();
    __syncthreads();
  }
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();

  if (threadIdx.x >= kConfig.math_threads()) {
    if (kConfig.dynamic.exists && threadIdx.x >= kConfig.math_threads() + 128) {
      sm90::cast_input(params, smem);
    } else {
      ptx::shrink_registers<kConfig.load_registers()>();
      sm90::load_and_store(params, smem);
    }
    __syncwarp();
    if constexpr (kConfig.cluster_depth > 1) ptx::cluster_wait();
  } else {
    ptx::grow_registers<kConfig.math_registers()>();
    sm90::multiply(params, smem);
  }
  // Other blocks of the cluster still write to this one's shared memory until all are done.
  if constexpr (kMulticasts) ptx::cluster_sync();
}

}  // namespace octofold
