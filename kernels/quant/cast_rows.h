// The cast of whole rows, each with one scale, by groups of threads: x is held in registers between
// the search for its largest magnitude and the cast, or read again where it does not fit.
#pragma once

#include "kernels/config/cast_config.h"
#include "kernels/config/cast_params.h"
#include "kernels/numeric/caster.h"
#include "kernels/numeric/vector.h"
#include "kernels/quant/access.h"
#include "kernels/quant/magnitudes.h"
#include "kernels/quant/unit.h"

namespace octofold::quant {

using config::CastParams;

template <CastConfig kConfig>
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
    cols_ = row_ < params.rows ? params.cols : 0;
  }

  __device__ void run() {
    load(0);
    unsigned magnitudes = held_magnitudes();
    if constexpr (kConfig.reread) {
      for (long long col = kChunk; col < cols_; col += kChunk) {
        load(col);
        magnitudes = numeric::larger<kConfig.in>(magnitudes, held_magnitudes());
      }
    }
    magnitudes = largest_of_warps<kConfig.in, kThreads / 32>(magnitudes, shared_.warp_magnitudes);
    const float amax = numeric::largest<kConfig.in>(magnitudes);
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
  }

 private:
  static constexpr int kVector = kConfig.vector();
  static constexpr int kVectors = kConfig.vectors_per_thread;
  static constexpr int kThreads = kConfig.threads_per_row;
  static constexpr int kChunk = kThreads * kVectors * kVector;  // columns
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

  __device__ unsigned held_magnitudes() const {
    unsigned magnitudes = 0;
#pragma unroll
    for (const auto& vector : x_) {
      magnitudes = numeric::larger<kConfig.in>(magnitudes, largest_of_vector<kConfig.in>(vector));
    }
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
