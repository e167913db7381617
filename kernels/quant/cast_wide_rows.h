// The cast of rows that no block of threads can hold, each with one scale, by clusters that take
// row after row. Each block of a cluster copies its part of the row into shared memory, reads it
// once for the largest magnitude, which the blocks tell each other, and once more for the codes.
// While it does so, its part of the cluster's next row arrives.
#pragma once

#include "kernels/config/arithmetic.h"
#include "kernels/config/cast_config.h"
#include "kernels/config/cast_params.h"
#include "kernels/numeric/caster.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/quant/access.h"
#include "kernels/quant/magnitudes.h"
#include "kernels/quant/unit.h"

namespace octofold::quant {

using config::CastParams;

template <CastConfig kConfig>
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
      const float amax = numeric::largest<kConfig.in>(largest_of_row(stage, parity));
      float* scale = params_.row_cast.scale + row * params_.row_cast.scale_row_stride;
      const bool owner = rank_ == 0 && threadIdx.x == 0;
      const Caster cast = Caster::make(own_unit<kConfig>(amax, owner ? scale : nullptr));
      if (cast.is_unusual()) {
        store<true>(row, stage, cast);
      } else {
        store<false>(row, stage, cast);
      }
      __syncthreads();  // the part has been read
      if (threadIdx.x == 0) load(row + kStages * clusters, stage);
    }
  }

 private:
  static constexpr int kVector = kConfig.vector();
  static constexpr int kBlocks = kConfig.blocks_per_row;
  static constexpr int kStages = kConfig.kStages;
  static constexpr int kThreads = kConfig.threads();
  using Caster = numeric::Caster<kConfig.rule.form, kConfig.in>;
  using Input = Storage<kConfig.in>;

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
      magnitudes = numeric::larger<kConfig.in>(magnitudes, largest_of_vector<kConfig.in>(words));
    }
    magnitudes = largest_of_warps<kConfig.in, kThreads / 32>(magnitudes, shared_.warp_magnitudes);
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
      magnitudes = numeric::larger<kConfig.in>(magnitudes, of_part);
    }
    return magnitudes;
  }

  template <bool kUnusual>
  __device__ void store(long long row, int stage, const Caster& cast) const {
    unsigned char* codes =
        params_.row_cast.codes + row * params_.row_cast.codes_stride + first_col_;
    for (int i = static_cast<int>(threadIdx.x); i < vectors_; i += kThreads) {
      unsigned words[4];
      read(stage, i, words);
      float values[kVector];
      numeric::widen<kConfig.in>(words, values);
      cast.template apply<kUnusual>(values);
      unsigned packed[kVector / 4];
      numeric::narrow<kConfig.out, kConfig.saturate>(values, packed);
      quant::store<unsigned char, kConfig.vector_stores, kVector>(codes + i * kVector, kVector,
                                                                  packed);
    }
  }

  const CastParams& params_;
  Shared& shared_;
  unsigned rank_;
  int vectors_;          // of this block's part
  long long first_col_;  // of the part
};

}  // namespace octofold::quant
