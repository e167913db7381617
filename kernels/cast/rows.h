// The cast of whole rows, each with one scale, by groups of threads: x is held in registers between
// the search for its largest magnitude and the cast, or read again where it does not fit.
//
// Registers are bound so that 1024 threads fit a multiprocessor. Without the bound 8192 columns
// fall to 74 % of the rate of a copy, and 65536 to 43; with it 8192 have 96 %. Rows of 32 to 64 KB
// are best with 512 threads of 8 vectors each, 91 to 92 %; clusters of blocks of 256 threads had 79
// to 88. What no block can hold takes wide_rows.h (docs/notes/casts.md).
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/reductions.h"
#include "kernels/cast/sources/all.h"
#include "kernels/cast/unit.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/control.h"

namespace octofold {
namespace cast {

using config::CastParams;

using config::RowCastConfig;

template <RowCastConfig kConfig>
class RowCast {
 public:
  struct Shared {
    unsigned warp_magnitudes[kConfig.threads() / 32];
  };

  __device__ RowCast(const CastParams& params, Shared& shared) : params_(params), shared_(shared) {
    row_ = static_cast<long long>(blockIdx.x) * kConfig.rows_per_block() +
           threadIdx.x / kConfig.threads_per_row;
    lane_ = static_cast<int>(threadIdx.x % kConfig.threads_per_row);
    // Threads without a row go along, as they are needed in exchanges.
    cols_ = exists() ? params.cols : 0;
  }

  __device__ void run() {
    if constexpr (kConfig.skips_unused && kConfig.rows_per_block() == 1) {
      if (!exists()) return;
    }
    load(0);
    unsigned magnitudes = held_magnitudes();
    if constexpr (kConfig.reread) {
      for (long long col = kChunk; col < cols_; col += kChunk) {
        load(col);
        magnitudes = numeric::larger<kIn>(magnitudes, held_magnitudes());
      }
    }
    magnitudes = largest_of_warps<kIn, kThreads / 32>(magnitudes, shared_.warp_magnitudes);
    const float amax = numeric::largest<kIn>(magnitudes);
    float* scale = params_.row_target.scale + row_ * params_.row_target.scale_row_stride;
    const bool owner = lane_ == 0 && exists();
    const Caster caster = Caster::make(write_scale<kConfig.format>(owner ? scale : nullptr, amax));
    if constexpr (!kConfig.reread) {
      store(0, caster);
    } else {
      for (long long col = 0; col < cols_; col += kChunk) {
        load(col);
        store(col, caster);
      }
    }
  }

 private:
  static constexpr int kVector = kConfig.format.vector();
  static constexpr int kVectors = kConfig.vectors_per_thread;
  static constexpr int kThreads = kConfig.threads_per_row;
  static constexpr int kChunk = kThreads * kVectors * kVector;  // columns
  static constexpr DType kIn = kConfig.format.in;
  using Caster = CasterOf<kConfig.format>;

  __device__ bool exists() const {
    if (row_ >= params_.rows) return false;
    if constexpr (kConfig.skips_unused) return is_used(params_.used, row_ / params_.matrix_rows);
    return is_written<kConfig.source>(params_, row_);
  }

  // First column of this thread's vector i in the chunk that begins at `col`.
  __device__ long long column(long long col, int i) const {
    return col + (i * kThreads + lane_) * kVector;
  }

  __device__ void load(long long col) {
    const Source<kConfig.source, kIn, kConfig.vector_loads> source(params_, row_, 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      source.read(0, column(col, i), at_most(cols_ - column(col, i), kVector), x_[i]);
    }
    if constexpr (kConfig.source.factors) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        source.multiply(0, at_most(cols_ - column(col, i), kVector), x_[i]);
      }
    }
  }

  __device__ unsigned held_magnitudes() const {
    unsigned magnitudes = 0;
#pragma unroll
    for (const auto& vector : x_) {
      magnitudes = numeric::larger<kIn>(magnitudes, largest_of_vector<kIn>(vector));
    }
    return magnitudes;
  }

  __device__ void store(long long col, const Caster& caster) const {
    if (caster.is_unusual()) {
      store<true>(col, caster);
    } else {
      store<false>(col, caster);
    }
  }

  template <bool kUnusual>
  __device__ void store(long long col, const Caster& caster) const {
    unsigned char* codes = params_.row_target.codes + row_ * params_.row_target.codes_stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float values[kVector];
      numeric::widen<kIn>(x_[i], values);
      caster.template apply<kUnusual>(values);
      unsigned words[kVector / 4];
      numeric::narrow<kConfig.format.out, kConfig.format.saturate>(values, words);
      cast::store<unsigned char, kConfig.vector_stores, kVector>(
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

}  // namespace cast

template <config::RowCastConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(),
                                  ptx::resident_blocks(kConfig.resident_blocks()))
    row_cast_kernel(const __grid_constant__ config::CastParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  __shared__ typename cast::RowCast<kConfig>::Shared shared;
  cast::RowCast<kConfig>(params, shared).run();
}

}  // namespace octofold
