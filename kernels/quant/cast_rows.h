// The cast of whole rows, each with one scale, by groups of threads: x is held in registers between
// the search for its largest magnitude and the cast, or read again where it does not fit.
#pragma once

#include "kernels/config/cast_config.h"
#include "kernels/config/cast_params.h"
#include "kernels/numeric/caster.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/quant/access.h"
#include "kernels/quant/unit.h"

namespace octofold::quant {

using config::CastParams;

template <CastConfig kConfig>
class RowCast {
 public:
  struct Shared {
    unsigned warp_magnitudes[32];
    unsigned block_magnitudes;
  };

  __device__ RowCast(const CastParams& params, Shared& shared) : params_(params), shared_(shared) {
    row_ = static_cast<long long>(blockIdx.x / kBlocks) * kConfig.rows_per_block() +
           threadIdx.x / kConfig.threads_per_row;
    lane_ = static_cast<int>(blockIdx.x % kBlocks * kConfig.threads_per_row +
                             threadIdx.x % kConfig.threads_per_row);
    // Threads without a row go along, as they are needed in exchanges.
    cols_ = row_ < params.rows ? params.cols : 0;
  }

  __device__ void run() {
    load(0);
    unsigned magnitudes = held_magnitudes();
    if constexpr (kConfig.reread) {
      for (long long col = kChunk; col < cols_; col += kChunk) {
        load(col);
        magnitudes = larger(magnitudes, held_magnitudes());
      }
    }
    const float amax = numeric::largest<kConfig.in>(largest_of_row(magnitudes));
    float* scale = params_.row_cast.scale + row_ * params_.row_cast.scale_row_stride;
    const bool owner = lane_ == 0 && row_ < params_.rows;
    const Caster cast = Caster::make(own_unit<kConfig>(amax, owner ? scale : nullptr));
    if constexpr (!kConfig.reread) {
      store(0, cast);
    } else {
      for (long long col = 0; col < cols_; col += kChunk) {
        load(col);
        store(col, cast);
      }
    }
    if constexpr (kBlocks > 1) ptx::cluster_wait();
  }

 private:
  static constexpr int kVector = kConfig.vector();
  static constexpr int kVectors = kConfig.vectors_per_thread;
  static constexpr int kBlocks = kConfig.blocks_per_row;
  static constexpr int kThreads = kConfig.threads_per_row * kBlocks;  // of a row
  static constexpr int kChunk = kThreads * kVectors * kVector;        // columns
  using Caster = numeric::Caster<kConfig.rule.form, kConfig.in>;
  using Input = Storage<kConfig.in>;

  // First column of this thread's vector i in the chunk that begins at `col`.
  __device__ long long column(long long col, int i) const {
    return col + (i * kThreads + lane_) * kVector;
  }

  __device__ void load(long long col) {
    const Input* x = static_cast<const Input*>(params_.x) + row_ * params_.x_stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      quant::load<Input, kConfig.vector_loads, kVector>(
          x + column(col, i), at_most(cols_ - column(col, i), kVector), x_[i]);
    }
  }

  static __device__ unsigned larger(unsigned left, unsigned right) {
    return numeric::larger<kConfig.in>(left, right);
  }

  __device__ unsigned held_magnitudes() const {
    unsigned magnitudes = 0;
#pragma unroll
    for (const auto& vector : x_) {
#pragma unroll
      for (const unsigned word : vector) {
        magnitudes = larger(magnitudes, numeric::magnitude<kConfig.in>(word));
      }
    }
    return magnitudes;
  }

  __device__ unsigned largest_of_row(unsigned magnitudes) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      magnitudes = larger(magnitudes, __shfl_xor_sync(0xFFFFFFFFu, magnitudes, distance));
    }
    if constexpr (kConfig.threads_per_row > 32) {
      constexpr unsigned kWarps = kConfig.threads_per_row / 32;
      const unsigned warp = threadIdx.x / 32, first_warp = warp & ~(kWarps - 1);
      if (threadIdx.x % 32 == 0) shared_.warp_magnitudes[warp] = magnitudes;
      __syncthreads();
      for (unsigned i = 0; i < kWarps; ++i) {
        magnitudes = larger(magnitudes, shared_.warp_magnitudes[first_warp + i]);
      }
    }
    if constexpr (kBlocks > 1) magnitudes = largest_of_cluster(magnitudes);
    return magnitudes;
  }

  __device__ unsigned largest_of_cluster(unsigned of_block) {
    if (threadIdx.x == 0) shared_.block_magnitudes = of_block;
    ptx::cluster_sync();
    unsigned magnitudes = of_block;
#pragma unroll
    for (unsigned rank = 0; rank < kBlocks; ++rank) {
      const unsigned other =
          ptx::load_shared_at_rank(ptx::shared_address(&shared_.block_magnitudes), rank);
      magnitudes = larger(magnitudes, other);
    }
    ptx::cluster_arrive();  // whoever waits for all of these may end
    return magnitudes;
  }

  __device__ void store(long long col, const Caster& cast) const {
    if (cast.is_unusual()) {
      store<true>(col, cast);
    } else {
      store<false>(col, cast);
    }
  }

  template <bool kUnusual>
  __device__ void store(long long col, const Caster& cast) const {
    unsigned char* codes = params_.row_cast.codes + row_ * params_.row_cast.codes_stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float values[kVector];
      numeric::widen<kConfig.in>(x_[i], values);
      cast.template apply<kUnusual>(values);
      unsigned words[kVector / 4];
      numeric::narrow<kConfig.out, kConfig.saturate>(values, words);
      quant::store<unsigned char, kConfig.vector_stores, kVector>(
          codes + column(col, i), at_most(cols_ - column(col, i), kVector), words);
    }
  }

  const CastParams& params_;
  Shared& shared_;
  long long row_;
  long long cols_;
  int lane_;
  unsigned x_[kVectors][4];
};

}  // namespace octofold::quant
