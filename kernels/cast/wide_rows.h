// The cast of rows that no block of threads can hold, each with one scale, by clusters that take
// row after row. Each block of a cluster copies its part of the row into shared memory, reads it
// once for the largest magnitude, which the blocks tell each other, and once more for the codes.
// While it does so, its part of the cluster's next row arrives.
//
// Rows in registers, shared by clusters, had 82 to 90 % of the rate of a copy at 65536 columns, and
// 54 % where 8 blocks do not hold the row, as each block is idle from its last load to the
// exchange; blocks that stay have 90 to 98. The blocks tell each other by `st.async` and an
// mbarrier: the release of a cluster barrier waits for the codes of the row before, 171 µs in place
// of 104 at 2048 × 65536. Parts of 36 KB, three blocks to a multiprocessor, serve better than two
// or four (docs/notes/casts.md).
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/reductions.h"
#include "kernels/cast/unit.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/shared/arithmetic.h"

namespace octofold {
namespace cast {

using config::CastParams;

using config::WideRowCastConfig;

template <WideRowCastConfig kConfig>
class WideRowCast {
 public:
  struct Shared {
    unsigned long long full[kConfig.kStages];  // barriers: the part has arrived
    unsigned long long told[kConfig.kStages];  // all blocks have told their parts' magnitudes
    unsigned warp_magnitudes[kConfig.threads() / 32];
    unsigned part_magnitudes[kConfig.kStages][kConfig.blocks_per_row];
  };

  __device__ WideRowCast(const CastParams& params, Shared& shared)
      : params_(params), shared_(shared), rank_(ptx::cluster_rank()) {
    // Not even the last part is empty: rows have far more vectors than a cluster blocks, squared.
    const int vectors = static_cast<int>(params.cols / kVector);
    const int vectors_per_part = config::ceil_divide(vectors, kBlocks);
    const int first = static_cast<int>(rank_) * vectors_per_part;
    vectors_ = vectors - first < vectors_per_part ? vectors - first : vectors_per_part;
    first_col_ = static_cast<long long>(first) * kVector;
  }

  __device__ void run() {
    const long long clusters = gridDim.x / kBlocks, first = blockIdx.x / kBlocks;
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        ptx::mbarrier_init(full(stage), 1);
        ptx::mbarrier_init(told(stage), 1);
      }
      ptx::fence_mbarrier_init();
      for (int stage = 0; stage < kStages; ++stage) load(first + stage * clusters, stage);
    }
    ptx::cluster_sync();  // all blocks are there, and their barriers
    unsigned turn = 0;
    for (long long row = first; row < params_.rows; row += clusters, ++turn) {
      const int stage = static_cast<int>(turn % kStages);
      const unsigned parity = turn / kStages % 2;
      ptx::mbarrier_wait(full(stage), parity);
      const float amax = numeric::largest<kIn>(largest_of_row(stage, parity));
      float* scale = params_.row_target.scale + row * params_.row_target.scale_row_stride;
      const bool owner = rank_ == 0 && threadIdx.x == 0;
      const Caster caster =
          Caster::make(write_scale<kConfig.format>(owner ? scale : nullptr, amax));
      if (caster.is_unusual()) {
        store<true>(row, stage, caster);
      } else {
        store<false>(row, stage, caster);
      }
      __syncthreads();  // the part has been read
      if (threadIdx.x == 0) load(row + kStages * clusters, stage);
    }
  }

 private:
  static constexpr int kVector = kConfig.format.vector();
  static constexpr int kBlocks = kConfig.blocks_per_row;
  static constexpr int kStages = kConfig.kStages;
  static constexpr int kThreads = kConfig.threads();
  static constexpr DType kIn = kConfig.format.in;
  using Caster = CasterOf<kConfig.format>;
  using Input = Storage<kIn>;

  static __device__ uint4* part(int stage) {
    extern __shared__ uint4 parts[];
    return parts + stage * (kConfig.part_bytes / 16);
  }

  __device__ unsigned full(int stage) const { return ptx::shared_address(&shared_.full[stage]); }
  __device__ unsigned told(int stage) const { return ptx::shared_address(&shared_.told[stage]); }

  __device__ void load(long long row, int stage) const {
    if (row >= params_.rows) return;
    const unsigned bytes = static_cast<unsigned>(vectors_) * 16;
    const Input* x = static_cast<const Input*>(params_.x) + row * params_.x_stride + first_col_;
    ptx::mbarrier_arrive_expect_bytes(full(stage), bytes);
    ptx::copy_async(ptx::shared_address(part(stage)), x, bytes, full(stage));
  }

  static __device__ void read(int stage, int vector, unsigned (&words)[4]) {
    const uint4 read = part(stage)[vector];
    words[0] = read.x, words[1] = read.y, words[2] = read.z, words[3] = read.w;
  }

  __device__ unsigned largest_of_row(int stage, unsigned parity) {
    unsigned magnitudes = 0;
    for (int i = static_cast<int>(threadIdx.x); i < vectors_; i += kThreads) {
      unsigned words[4];
      read(stage, i, words);
      magnitudes = numeric::larger<kIn>(magnitudes, largest_of_vector<kIn>(words));
    }
    magnitudes = largest_of_warps<kIn, kThreads / 32>(magnitudes, shared_.warp_magnitudes);
    // A block that is ahead of this one writes to the other stage's: it gets no further before this
    // one has sent it the next row's.
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect_bytes(told(stage), kBlocks * sizeof(unsigned));
    }
    if (threadIdx.x < kBlocks) {
      ptx::store_async_at_rank(ptx::shared_address(&shared_.part_magnitudes[stage][rank_]),
                               threadIdx.x, magnitudes, told(stage));
    }
    ptx::mbarrier_wait(told(stage), parity);
#pragma unroll
    for (const unsigned of_part : shared_.part_magnitudes[stage]) {
      magnitudes = numeric::larger<kIn>(magnitudes, of_part);
    }
    return magnitudes;
  }

  template <bool kUnusual>
  __device__ void store(long long row, int stage, const Caster& caster) const {
    unsigned char* codes =
        params_.row_target.codes + row * params_.row_target.codes_stride + first_col_;
    for (int i = static_cast<int>(threadIdx.x); i < vectors_; i += kThreads) {
      unsigned words[4];
      read(stage, i, words);
      float values[kVector];
      numeric::widen<kIn>(words, values);
      caster.template apply<kUnusual>(values);
      unsigned packed[kVector / 4];
      numeric::narrow<kConfig.format.out, kConfig.format.saturate>(values, packed);
      cast::store<unsigned char, kConfig.vector_stores, kVector>(codes + i * kVector, kVector,
                                                                 packed);
    }
  }

  const CastParams& params_;
  Shared& shared_;
  unsigned rank_;
  int vectors_;          // of this block's part
  long long first_col_;  // of the part
};

}  // namespace cast

template <config::WideRowCastConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    wide_row_cast_kernel(const __grid_constant__ config::CastParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  __shared__ typename cast::WideRowCast<kConfig>::Shared shared;
  cast::WideRowCast<kConfig>(params, shared).run();
}

}  // namespace octofold
