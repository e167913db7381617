// The loading warpgroup's work: operands into the stages of the ring, and their scales.
#pragma once

#include "kernels/config/arithmetic.h"
#include "kernels/config/gemm_params.h"
#include "kernels/gemm/pipeline.h"
#include "kernels/gemm/tile_walk.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

using config::GemmConfig;
using config::GemmParams;

__device__ inline int k_blocks(const GemmParams& params) {
  return config::ceil_divide(params.k, kScaleBlock);
}

// Calls load(stage, tile origin, k) for each stage that this block is to fill, when it is empty.
template <GemmConfig kConfig, typename Load>
__device__ void for_each_stage(const GemmParams& params, const SharedMemory<kConfig>& smem,
                               Load&& load) {
  RingPosition<kConfig.stages> position;
  for (TileWalk<kConfig> walk(params); walk.has_tile(); walk.advance()) {
    const config::TileCoordinate origin = walk.origin();
    for (int k = 0; k < params.k; k += kScaleBlock) {
      ptx::mbarrier_wait(smem.empty(position.stage), position.parity ^ 1);
      load(position.stage, origin, k);
      position.advance();
    }
  }
}

// One thread. In a cluster each block loads its share of what all of them need, and multicasts it.
template <GemmConfig kConfig>
__device__ void load_operands_by_tma(const GemmParams& params, const SharedMemory<kConfig>& smem) {
  constexpr int kRowsA = kConfig.tile_m / kConfig.cluster_n;
  constexpr int kRowsB = kConfig.tile_n / kConfig.cluster_m;
  constexpr unsigned short kEveryBlock = (1 << kConfig.cluster_size()) - 1;
  const int rank = kConfig.cluster_size() > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
  const unsigned bytes =
      params.a_box_rows * kConfig.cluster_n * kScaleBlock + SharedMemory<kConfig>::kLayout.b_bytes;

  for_each_stage(params, smem, [&](int stage, config::TileCoordinate origin, int k) {
    const unsigned full = smem.full(stage);
    ptx::mbarrier_arrive_expect_bytes(full, bytes);
    if constexpr (kConfig.cluster_n > 1) {
      const int row = rank * kRowsA;
      ptx::tma_load_multicast(smem.a(stage) + row * kScaleBlock, &params.a_map, full, k,
                              origin.m + row, kEveryBlock);
    } else {
      ptx::tma_load(smem.a(stage), &params.a_map, full, k, origin.m);
    }
    if constexpr (kConfig.cluster_m > 1) {
      const int row = rank * kRowsB;
      ptx::tma_load_multicast(smem.b(stage) + row * kScaleBlock, &params.b_map, full, k,
                              origin.n + row, kEveryBlock);
    } else {
      ptx::tma_load(smem.b(stage), &params.b_map, full, k, origin.n);
    }
  });
}

// The scales of one operand, word by word: any layout of the scale tensor will do, and one in which
// neighbouring rows are neighbours in memory is read in full lines. One warp. It has about as long
// for a stage as the tensor cores have, so that only the copies themselves are left in its loop.
// Units beyond the last get the last one's scale: their products are not stored.
template <int kUnits, GemmConfig kConfig, typename FirstUnit, typename Target>
__device__ void load_scales(const GemmParams& params, const SharedMemory<kConfig>& smem,
                            const float* scale, long long unit_stride, long long k_stride,
                            int units, FirstUnit first_unit, Target target) {
  constexpr int kUnitsOfLane = (kUnits + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<kConfig.stages> position;
  for (TileWalk<kConfig> walk(params); walk.has_tile(); walk.advance()) {
    const int first = first_unit(walk.origin()) + lane;
    const float* sources[kUnitsOfLane];
#pragma unroll
    for (int i = 0; i < kUnitsOfLane; ++i) {
      sources[i] = scale + min(first + 32 * i, units - 1) * unit_stride;
    }
    for (int k = 0; k < params.k; k += kScaleBlock) {
      ptx::mbarrier_wait(smem.empty(position.stage), position.parity ^ 1);
      const unsigned destination = target(position.stage) + 4 * lane;
#pragma unroll
      for (int i = 0; i < kUnitsOfLane; ++i) {
        if (kUnits % 32 == 0 || lane + 32 * i < kUnits) {
          ptx::copy_word_async(destination + 4 * 32 * i, sources[i]);
        }
        sources[i] += k_stride;
      }
      ptx::mbarrier_arrive_after_copies(smem.full(position.stage));
      position.advance();
    }
  }
}

template <GemmConfig kConfig>
__device__ void load_scales_of_a(const GemmParams& params, const SharedMemory<kConfig>& smem) {
  load_scales<kConfig.tile_m>(
      params, smem, params.scale_a, params.scale_a_row_stride, params.scale_a_col_stride, params.m,
      [](config::TileCoordinate origin) { return origin.m; },
      [&](int stage) { return smem.scale_a(stage); });
}

template <GemmConfig kConfig>
__device__ void load_scales_of_b(const GemmParams& params, const SharedMemory<kConfig>& smem) {
  constexpr bool kSquare = kConfig.scaling == config::GemmScaling::kBlock;
  constexpr int kRowsOfUnit = kSquare ? kScaleBlock : 1;
  load_scales<kSquare ? kConfig.scale_columns() : kConfig.tile_n>(
      params, smem, params.scale_b, params.scale_b_row_stride, params.scale_b_col_stride,
      config::ceil_divide(params.n, kRowsOfUnit),
      [](config::TileCoordinate origin) { return origin.n / kRowsOfUnit; },
      [&](int stage) { return smem.scale_b(stage); });
}

// 16 bytes from an address without alignment. Words are read whole where another one follows in
// the row, as the shift needs it; at the end of a row bytes are.
__device__ inline uint4 gather_16_bytes(const unsigned char* source, int existing) {
  unsigned words[5] = {};
  if (existing >= 20) {
    const unsigned long long address = reinterpret_cast<unsigned long long>(source);
    const unsigned* aligned = reinterpret_cast<const unsigned*>(address & ~3ull);
    for (int i = 0; i < 5; ++i) words[i] = aligned[i];
    const unsigned shift = 8 * (address & 3);
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], shift);
  } else {
    for (int i = 0; i < 16; ++i) {
      if (i < existing) words[i / 4] |= static_cast<unsigned>(source[i]) << (8 * (i % 4));
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// What TMA would do, for rows of any address and stride: two warps copy and swizzle.
template <GemmConfig kConfig>
__device__ void load_operands_by_threads(const GemmParams& params,
                                         const SharedMemory<kConfig>& smem, int thread) {
  constexpr int kChunksOfRow = kScaleBlock / 16;
  const auto copy_tile = [&](unsigned target, const unsigned char* operand, long long stride,
                             int first, int rows_of_tile, int rows, int k) {
#pragma unroll 1  // this warpgroup has few registers
    for (int i = thread; i < rows_of_tile * kChunksOfRow;
         i += static_cast<int>(SharedMemory<kConfig>::kCopyThreads)) {
      const int row = i / kChunksOfRow, chunk = i % kChunksOfRow;
      const int column = k + 16 * chunk;
      const int existing = first + row < rows ? params.k - column : 0;
      const unsigned char* source = operand + (existing > 0 ? (first + row) * stride + column : 0);
      ptx::store_shared(target + row * kScaleBlock + 16 * (chunk ^ (row % 8)),
                        gather_16_bytes(source, existing));
    }
  };
  for_each_stage(params, smem, [&](int stage, config::TileCoordinate origin, int k) {
    copy_tile(smem.a(stage), params.a, params.a_stride, origin.m, kConfig.tile_m, params.m, k);
    copy_tile(smem.b(stage), params.b, params.b_stride, origin.n, kConfig.tile_n, params.n, k);
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(smem.full(stage));
  });
}

}  // namespace octofold::sm90
