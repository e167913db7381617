// The block's shared memory: Sm90SmemLayout's offsets as addresses, and the barriers' meaning.
#pragma once

#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/sm90/config/gemm.h"

namespace octofold::sm90 {

template <config::Sm90GemmConfig kConfig>
struct SharedMemory {
  static constexpr config::Sm90SmemLayout kLayout{kConfig};
  unsigned base;

  __device__ unsigned rows(int stage) const {
    return base + kLayout.rows + stage * kLayout.rows_bytes;
  }
  __device__ unsigned columns(int stage) const {
    return base + kLayout.columns + stage * kLayout.columns_bytes;
  }
  __device__ unsigned row_scales(int stage) const {
    return base + kLayout.row_scales + stage * kLayout.row_scales_bytes;
  }
  __device__ unsigned column_scales(int stage) const {
    return base + kLayout.column_scales + stage * kLayout.column_scales_bytes;
  }
  __device__ unsigned output() const { return base + kLayout.output; }
  // Of the other blocks that share the tile, in their order.
  __device__ unsigned slice(int other) const {
    return base + kLayout.slices + other * kLayout.slice_bytes;
  }

  // Operands and scales of a stage are there; every math warp that reads them, of every block that
  // they are multicast with, is done with them.
  __device__ unsigned full(int stage) const { return base + kLayout.barriers + 8 * stage; }
  __device__ unsigned empty(int stage) const { return full(kConfig.stages + stage); }
  // The tile of D is written; the copy engine has read it.
  __device__ unsigned output_full() const { return full(2 * kConfig.stages); }
  __device__ unsigned output_empty() const { return full(2 * kConfig.stages + 1); }
  // The sums of the other blocks that share the tile are there.
  __device__ unsigned slices_full() const { return full(2 * kConfig.stages + 2); }

  // Where boxes of C come to and those of D leave from; C is there; it is D's.
  __device__ unsigned box(int place) const { return output() + place * kLayout.output_box_bytes; }
  __device__ unsigned box_full(int place) const { return full(2 * kConfig.stages + 3 + place); }
  __device__ unsigned box_summed(int place) const { return box_full(kConfig.boxes + place); }

  // Rows of both operands as threads copy them, in two buffers.
  __device__ unsigned unaligned(int buffer) const {
    return base + kLayout.unaligned + buffer * kLayout.unaligned_bytes;
  }

  // Loading warps that copy operands where TMA cannot: all but the two that copy scales.
  static constexpr int kCopyWarps = 4 * kConfig.load_warpgroups() - 2;
  // Arrivals that tell of operands: TMA's thread, a lane of each warp that shifts, each that
  // copies.
  static constexpr unsigned kOperandProducers = kConfig.load == config::OperandLoad::kTma ? 1
                                                : kConfig.load == config::OperandLoad::kWords
                                                    ? 32 * kCopyWarps
                                                    : kCopyWarps;
  // Threads of a warp that copies scales, which has nothing to do where none vary along K.
  static constexpr unsigned scale_threads(int units) { return units < 32 ? units : 32; }

  // The first warp.
  __device__ void init_barriers() const {
    constexpr unsigned kMathWarps = 4 * kConfig.math_warpgroups;
    constexpr int kRowScales = config::scales_per_stage(kConfig.row_scales(), kConfig.tile_rows);
    constexpr unsigned kOfColumns = kConfig.dynamic.exists
                                        ? kConfig.cast_turns()
                                        : scale_threads(kConfig.column_scales_per_stage());
    constexpr unsigned kProducers = kOperandProducers + scale_threads(kRowScales) + kOfColumns;
    static_assert(kConfig.stages <= 32 && kConfig.boxes <= 32);
    const int stage = static_cast<int>(threadIdx.x);
    if (stage < kConfig.stages) {
      ptx::mbarrier_init(full(stage), kProducers);
      ptx::mbarrier_init(empty(stage), kMathWarps * kConfig.cluster_rows * kConfig.cluster_columns);
    }
    if (stage < kConfig.boxes) {
      ptx::mbarrier_init(box_full(stage), 1);
      ptx::mbarrier_init(box_summed(stage), kMathWarps);
    }
    if (stage == 0) {
      ptx::mbarrier_init(output_full(), kMathWarps);
      ptx::mbarrier_init(output_empty(), 1);
      ptx::mbarrier_init(slices_full(), 1);
    }
    ptx::fence_mbarrier_init();
  }
};

}  // namespace octofold::sm90
