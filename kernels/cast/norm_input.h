// The rows that a norm reads, of x and of a residual: which one a group of threads is at, what each
// thread has of it, and how that gets into registers.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/row_ring.h"
#include "kernels/config/norm_config.h"
#include "kernels/config/norm_params.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/global_memory.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::cast {

using config::NormParams;
using config::NormRowConfig;

template <NormRowConfig kConfig>
class NormInput {
 protected:
  static constexpr DType kIn = kConfig.format.in;
  static constexpr int kVector = kConfig.format.vector();
  static constexpr int kVectors = kConfig.vectors_per_thread;
  static constexpr int kThreads = kConfig.threads_per_row;
  static constexpr int kStages = kConfig.stages;
  using Input = Storage<kIn>;
  using Words = unsigned[kVectors][4];
  using Barriers = unsigned long long[kConfig.rows_per_block()][kStages > 0 ? kStages : 1];

  __device__ NormInput(const NormParams& params, const Barriers& barriers)
      : params_(params),
        barriers_(barriers),
        group_(static_cast<int>(threadIdx.x / kThreads)),
        lane_(static_cast<int>(threadIdx.x % kThreads)) {
    begin_row(first_of_block() + group_);
  }

  // Calls body() for each row of this group.
  template <typename Prepare, typename Body>
  __device__ void for_each_row(Prepare&& prepare, Body&& body) {
    if constexpr (kStages == 0) {
      body();
    } else {
      if (lane_ == 0) {
        ring().prepare();
        for (int stage = 0; stage < kStages; ++stage) load_ahead(stage);
      }
      prepare();
      __syncthreads();  // the rings are prepared
      for (long long first = first_of_block(); first < params_.rows; first += step(), ++turn_) {
        if (has_row()) ring().wait(turn_);
        // Lanes are together again, for what they exchange. Of groups that wait for rows of their
        // own, the compiler believes it behind a barrier of the block only.
        if constexpr (kConfig.rows_per_block() == 1) {
          __syncwarp();
        } else {
          __syncthreads();
        }
        body();
        begin_row(first + step() + group_);
      }
    }
  }

  // Threads without a row go along, as they are needed in exchanges.
  __device__ bool has_row() const { return kConfig.rows_per_block() == 1 || row_ < params_.rows; }

  // First column of this thread's vector i in the chunk that begins at `col`, and how many of its
  // elements exist.
  __device__ long long column(long long col, int i) const {
    return col + lane_ * kVector + i * (kThreads * kVector);
  }
  __device__ int exist(long long col, int i) const {
    if constexpr (kConfig.fills_threads) return kVector;
    return at_most(cols_ - column(col, i), kVector);
  }

  // What is normalized, for the first time: the sum is rounded, and written.
  __device__ void load_first(long long col, Words& x) const {
    if constexpr (kStages > 0) {
      read_ring(0, x);
    } else {
      const Input* row = static_cast<const Input*>(params_.x) + row_ * params_.x_stride;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        cast::load<Input, kConfig.vector_loads, kVector>(row + column(col, i), exist(col, i), x[i]);
      }
    }
    if constexpr (kConfig.adds_residual) {
      Words residual;
      if constexpr (kStages > 0) {
        read_ring(1, residual);
      } else {
        load_own(params_.residual, params_.residual_stride, col, residual);
      }
      Input* sum = static_cast<Input*>(params_.sum) + row_ * params_.sum_stride;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float left[kVector], right[kVector];
        numeric::widen<kIn>(x[i], left);
        numeric::widen<kIn>(residual[i], right);
#pragma unroll
        for (int j = 0; j < kVector; ++j) left[j] = __fadd_rn(left[j], right[j]);
        numeric::narrow<kIn, false>(left, x[i]);
        cast::store<Input, kConfig.vector_loads, kVector>(sum + column(col, i), exist(col, i),
                                                          x[i]);
      }
    }
  }

  // The same values once more.
  __device__ void load_again(long long col, Words& x) const {
    if constexpr (kConfig.adds_residual) {
      load_own(params_.sum, params_.sum_stride, col, x);
    } else {
      load_first(col, x);
    }
  }

  // All threads have passed a barrier since they loaded the row: another takes its place.
  __device__ void let_next_row_come() const {
    if constexpr (kStages > 0) {
      if (lane_ == 0) load_ahead(kStages);
      __syncwarp();
    }
  }

  const NormParams& params_;
  const Barriers& barriers_;
  int group_, lane_;  // of the block, of the group
  long long row_;
  long long cols_;  // of the row, if it exists
  unsigned turn_ = 0;

 private:
  using Ring = RowRing<kStages, kConfig.matrices(), kConfig.held_bytes()>;

  __device__ void begin_row(long long row) {
    row_ = row;
    cols_ = has_row() ? params_.cols : 0;
  }

  static __device__ long long first_of_block() {
    return static_cast<long long>(blockIdx.x) * kConfig.rows_per_block();
  }

  // Rows from one turn to the next.
  static __device__ long long step() {
    return static_cast<long long>(gridDim.x) * kConfig.rows_per_block();
  }

  __device__ Ring ring() const {
    extern __shared__ uint4 rows[];
    return {rows + group_ * (Ring::kBytes / 16), barriers_[group_]};
  }

  // The row that is so many turns ahead.
  __device__ void load_ahead(int turns) const {
    const long long row = row_ + turns * step();
    if (row >= params_.rows) return;
    const Input* x = static_cast<const Input*>(params_.x) + row * params_.x_stride;
    const unsigned bytes = static_cast<unsigned>(params_.cols) * sizeof(Input);
    if constexpr (kConfig.adds_residual) {
      const Input* residual =
          static_cast<const Input*>(params_.residual) + row * params_.residual_stride;
      ring().load(turn_ + turns, {x, residual}, bytes);
    } else {
      ring().load(turn_ + turns, {x}, bytes);
    }
  }

  // This turn's row of a matrix.
  __device__ void read_ring(int matrix, Words& words) const {
    const unsigned row = ring().row(turn_, matrix) + lane_ * 16;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (unsigned& word : words[i]) word = 0;
      if (exist(0, i) > 0) ptx::load_shared_words(row + i * kThreads * 16, words[i]);
    }
  }

  // Of a matrix that this thread may write too.
  __device__ void load_own(const void* data, long long stride, long long col, Words& words) const {
    const Input* row = static_cast<const Input*>(data) + row_ * stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (kConfig.vector_loads) {
#pragma unroll
        for (unsigned& word : words[i]) word = 0;
        if (exist(col, i) > 0) ptx::load_own(row + column(col, i), words[i]);
      } else {
        cast::load<Input, false, kVector>(row + column(col, i), exist(col, i), words[i]);
      }
    }
  }
};

}  // namespace octofold::cast
