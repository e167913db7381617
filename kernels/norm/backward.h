// The gradient by a norm's input, of a span of rows to a block. With n = (x - mean) · rstd and g =
// dy · weight · (1 + scale), where these are:
//
//   dx = rstd · (g - n · mean(g · n) - mean(g)) + the residual's gradient
//
// the last mean being kLayer's only. Each thread has the same 16 columns of all rows, so that it
// sums dy · n and dy over the rows of the span by itself, without exchange. A row's dx takes one
// barrier, and the next row arrives meanwhile. The sums go to the workspace, a row for each span,
// where gradients.h adds them in their order.
//
// Sums are in registers up to 8192 columns. Beyond, twice as many threads have half as many
// registers, and sums are in shared memory; rows that even these do not hold are read twice, by
// chunks of columns. A GPU whose shared memory is too small sums in the workspace.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/norm_operands.h"
#include "kernels/cast/reductions.h"
#include "kernels/norm/config/norm.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold {
namespace norm {

using config::NormBackwardConfig;
using config::NormBackwardParams;
using config::NormSums;

template <NormBackwardConfig kConfig>
class NormBackward {
  static constexpr int kVector = kConfig.vector();
  static constexpr int kVectors = kConfig.vectors_per_thread;
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kChunk = kConfig.chunk();  // columns
  static constexpr DType kIn = kConfig.in;
  static constexpr bool kCentres = kConfig.form.centres();
  static constexpr bool kKeepsFactors = kConfig.sums == NormSums::kRegisters;
  using Input = cast::Storage<kIn>;
  using Words = unsigned[kVectors][4];

 public:
  struct Shared {
    float products[2][kWarps], gradients[2][kWarps];  // of one row, and of the next
  };

  __device__ NormBackward(const NormBackwardParams& params, Shared& shared, unsigned memory)
      : params_(params), shared_(shared), memory_(memory), cols_(params.cols) {
    batch_ = blockIdx.x / params.blocks_per_batch;
    const long long span = blockIdx.x - batch_ * params.blocks_per_batch;
    const long long end = (batch_ + 1) * params.operands.rows_per_batch;
    first_ = batch_ * params.operands.rows_per_batch + span * params.rows_per_block;
    last_ = first_ + params.rows_per_block < end ? first_ + params.rows_per_block : end;
  }

  __device__ void run() {
    if constexpr (kConfig.wide()) {
      run_wide();
    } else {
      run_held();
    }
  }

 private:
  // A thread of narrow rows keeps the factors of dy of its columns, and sums over the rows.
  struct Columns {
    float factors[kVectors][kVector];
    float sums[2][kVectors][kVector];
  };
  enum Sum { kProducts, kOffsets };  // of dy · n, of dy
  struct RowSums {
    float product = 0, gradient = 0;  // g · n, g
  };

  __device__ long long column(long long col, int i) const {
    return col + (i * kThreads + static_cast<int>(threadIdx.x)) * kVector;
  }
  __device__ int exist(long long col, int i) const {
    return cast::at_most(cols_ - column(col, i), kVector);
  }

  __device__ void run_held() {
    Columns columns;
    if constexpr (kKeepsFactors) load_factors(columns);
    clear_sums(0, columns);
    Words x, dy, next_x, next_dy;
    if (kConfig.loads_ahead() && first_ < last_) load_row(first_, 0, next_x, next_dy);
    for (long long row = first_; row < last_; ++row) {
      if constexpr (kConfig.loads_ahead()) {
        copy(next_x, x);
        copy(next_dy, dy);
        if (row + 1 < last_) load_row(row + 1, 0, next_x, next_dy);
      } else {
        load_row(row, 0, x, dy);
      }
      const float rstd = params_.rstd[row], mean = mean_of_row(row);
      RowSums sums;
      add(0, x, dy, mean, rstd, columns, sums);
      share(sums, static_cast<int>((row - first_) % 2));
      store_dx(row, 0, x, dy, mean, rstd, columns, sums);
    }
    store_sums(0, columns);
  }

  // Chunk by chunk, twice.
  __device__ void run_wide() {
    Columns columns{};  // nothing of which is kept
    for_chunks([&](long long col) { clear_sums(col, columns); });
    for (long long row = first_; row < last_; ++row) {
      const float rstd = params_.rstd[row], mean = mean_of_row(row);
      RowSums sums;
      Words x, dy;
      for_chunks([&](long long col) {
        load_row(row, col, x, dy);
        add(col, x, dy, mean, rstd, columns, sums);
      });
      share(sums, static_cast<int>((row - first_) % 2));
      for_chunks([&](long long col) {
        load_row(row, col, x, dy);
        store_dx(row, col, x, dy, mean, rstd, columns, sums);
      });
    }
    for_chunks([&](long long col) { store_sums(col, columns); });
  }

  template <typename Action>
  static __device__ void for_chunks(Action&& action) {
#pragma unroll 1
    for (int chunk = 0; chunk < kConfig.chunks; ++chunk) {
      action(static_cast<long long>(chunk) * kChunk);
    }
  }

  __device__ float mean_of_row(long long row) const {
    if constexpr (kCentres) return params_.mean[row];
    return 0;
  }

  static __device__ void copy(const Words& from, Words& to) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i][j] = from[i][j];
    }
  }

  __device__ void load_row(long long row, long long col, Words& x, Words& dy) const {
    load_matrix(params_.x, params_.x_stride, row, col, x);
    load_matrix(params_.dy, params_.dy_stride, row, col, dy);
  }

  __device__ void load_matrix(const void* data, long long stride, long long row, long long col,
                              Words& words) const {
    const Input* elements = static_cast<const Input*>(data) + row * stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      cast::load<Input, kConfig.vectors, kVector>(elements + column(col, i), exist(col, i),
                                                  words[i]);
    }
  }

  __device__ void load_factors(Columns& columns) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) load_factors(0, i, columns.factors[i]);
  }

  // 0 where there is no column, which leaves it out of every sum.
  __device__ void load_factors(long long col, int i, float (&factors)[kVector]) const {
    constexpr auto kWeight = kConfig.form.weight, kScale = kConfig.form.scale;
    const int count = exist(col, i);
    float weight[kVector], scale[kVector];
    load_operand<kWeight>(params_.operands.weight, column(col, i), count, weight);
    load_operand<kScale>(params_.operands.scale,
                         batch_ * params_.operands.scale_stride + column(col, i), count, scale);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      float factor = j < count ? 1.0f : 0.0f;
      if constexpr (kWeight != config::NormOperand::kNone) factor = weight[j];
      if constexpr (kScale != config::NormOperand::kNone)
        factor = cast::modulated(factor, scale[j]);
      factors[j] = factor;
    }
  }

  __device__ void factors_of(long long col, int i, const Columns& columns,
                             float (&factors)[kVector]) const {
    if constexpr (!kKeepsFactors) return load_factors(col, i, factors);
#pragma unroll
    for (int j = 0; j < kVector; ++j) factors[j] = columns.factors[i][j];
  }

  template <config::NormOperand kOperand>
  static __device__ void load_operand(const void* data, long long offset, int exist,
                                      float (&values)[kVector]) {
    cast::OperandVector<kOperand, kIn, false> vector;
    vector.load(data, offset, exist);
    vector.widen(values);
  }

  // A thread's sums of its columns, wherever they are.
  __device__ float sum(Sum which, const Columns& columns, long long col, int i, int j) const {
    if constexpr (kConfig.sums == NormSums::kRegisters) return columns.sums[which][i][j];
    if constexpr (kConfig.sums == NormSums::kShared) {
      return ptx::load_shared(place(which, col, i, j));
    }
    return j < exist(col, i) ? workspace(which)[column(col, i) + j] : 0;
  }
  __device__ void set_sum(Sum which, Columns& columns, long long col, int i, int j,
                          float value) const {
    if constexpr (kConfig.sums == NormSums::kRegisters) {
      columns.sums[which][i][j] = value;
    } else if constexpr (kConfig.sums == NormSums::kShared) {
      ptx::store_shared_word(place(which, col, i, j), __float_as_uint(value));
    } else if (j < exist(col, i)) {
      workspace(which)[column(col, i) + j] = value;
    }
  }

  // In shared memory threads that are neighbours have neighbouring words.
  __device__ unsigned place(Sum which, long long col, int i, int j) const {
    const int of_sums = which == kOffsets && kConfig.sums_products ? 1 : 0;
    const auto chunk = kConfig.wide() ? static_cast<int>(col / kChunk) : 0;
    const int vector = (chunk * kConfig.kinds_of_sums() + of_sums) * kVectors + i;
    return memory_ + 4 * ((vector * kVector + j) * kThreads + static_cast<int>(threadIdx.x));
  }
  __device__ float* workspace(Sum which) const {
    return (which == kProducts ? params_.products : params_.offsets) + blockIdx.x * cols_;
  }

  template <typename Action>
  static __device__ void for_sums(Action&& action) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (kConfig.sums_products) action(kProducts, i);
      if constexpr (kConfig.sums_offsets) action(kOffsets, i);
    }
  }

  __device__ void clear_sums(long long col, Columns& columns) const {
    for_sums([&](Sum which, int i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) set_sum(which, columns, col, i, j, 0);
    });
  }

  __device__ void store_sums(long long col, const Columns& columns) const {
    if constexpr (kConfig.sums == NormSums::kWorkspace) return;
    for_sums([&](Sum which, int i) {
#pragma unroll
      for (int j = 0; j < kVector; j += 4) {  // 16 bytes at a time
        unsigned words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          words[k] = __float_as_uint(sum(which, columns, col, i, j + k));
        }
        auto* const to = reinterpret_cast<unsigned*>(workspace(which) + column(col, i) + j);
        cast::store<unsigned, kConfig.vectors, 4>(to, exist(col, i) - j, words);
      }
    });
  }

  __device__ void add(long long col, const Words& x, const Words& dy, float mean, float rstd,
                      Columns& columns, RowSums& sums) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float n[kVector], of_y[kVector];
      widen<false>(x[i], dy[i], exist(col, i), mean, rstd, n, of_y);
      float factors[kVector];
      factors_of(col, i, columns, factors);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if constexpr (kConfig.sums_products) {
          const float product = sum(kProducts, columns, col, i, j);
          set_sum(kProducts, columns, col, i, j, __fmaf_rn(of_y[j], n[j], product));
        }
        if constexpr (kConfig.sums_offsets) {
          const float offset = sum(kOffsets, columns, col, i, j);
          set_sum(kOffsets, columns, col, i, j, __fadd_rn(offset, of_y[j]));
        }
        const float g = __fmul_rn(of_y[j], factors[j]);
        sums.product = __fmaf_rn(g, n[j], sums.product);
        if constexpr (kCentres) sums.gradient = __fadd_rn(sums.gradient, g);
      }
    }
  }

  // Normalized x, and dy. What does not exist has a dy of 0, and an x that is as good as any. Told
  // kAgain, as numeric::widen() is.
  template <bool kAgain>
  static __device__ void widen(const unsigned (&x)[4], const unsigned (&dy)[4], int exist,
                               float mean, float rstd, float (&n)[kVector],
                               float (&of_y)[kVector]) {
    numeric::widen<kIn, kAgain>(x, n);
    numeric::widen<kIn, kAgain>(dy, of_y);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      n[j] = cast::normalized<kConfig.form.kind>(n[j], mean, rstd);
      // An infinite mean would make NaN of it.
      if (kConfig.vectors ? exist <= 0 : j >= exist) n[j] = 0;
    }
  }

  // From a thread's sums to the means over the row.
  __device__ void share(RowSums& sums, int buffer) {
    if constexpr (kCentres) {
      sums.gradient = cast::sum_of_lanes(sums.gradient);
      if (threadIdx.x % 32 == 0) shared_.gradients[buffer][threadIdx.x / 32] = sums.gradient;
    }
    // Its barrier is one for both; the next row's sums go elsewhere, and those after them behind
    // the next row's barrier.
    sums.product = cast::sum_of_warps<kWarps>(sums.product, shared_.products[buffer]);
    sums.product = cast::mean_of(sums.product, cols_);
    if constexpr (kCentres) {
      if constexpr (kWarps > 1) {
        sums.gradient = 0;
#pragma unroll
        for (const float of_warp : shared_.gradients[buffer]) {
          sums.gradient = __fadd_rn(sums.gradient, of_warp);
        }
      }
      sums.gradient = cast::mean_of(sums.gradient, cols_);
    }
  }

  __device__ void store_dx(long long row, long long col, const Words& x, const Words& dy,
                           float mean, float rstd, const Columns& columns,
                           const RowSums& means) const {
    Words addend;
    if constexpr (kConfig.adds_gradient) {
      load_matrix(params_.addend, params_.addend_stride, row, col, addend);
    }
    Input* dx = static_cast<Input*>(params_.dx) + row * params_.dx_stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float n[kVector], of_y[kVector];
      widen<true>(x[i], dy[i], exist(col, i), mean, rstd, n, of_y);
      float factors[kVector];
      factors_of(col, i, columns, factors);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        float value = __fmul_rn(of_y[j], factors[j]);
        if constexpr (kCentres) value = __fadd_rn(value, -means.gradient);
        of_y[j] = __fmul_rn(rstd, __fmaf_rn(-n[j], means.product, value));
      }
      if constexpr (kConfig.adds_gradient) {
        numeric::widen<kIn>(addend[i], n);
#pragma unroll
        for (int j = 0; j < kVector; ++j) of_y[j] = __fadd_rn(of_y[j], n[j]);
      }
      unsigned words[4];
      numeric::narrow<kIn, false>(of_y, words);
      cast::store<Input, kConfig.vectors, kVector>(dx + column(col, i), exist(col, i), words);
    }
  }

  const NormBackwardParams& params_;
  Shared& shared_;
  const unsigned memory_;  // of the sums, if it is shared memory
  long long cols_, batch_;
  long long first_, last_;  // rows of the span
};

}  // namespace norm

template <config::NormBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(),
                                  ptx::resident_blocks(kConfig.resident_blocks()))
    norm_backward_kernel(const __grid_constant__ config::NormBackwardParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  __shared__ typename norm::NormBackward<kConfig>::Shared shared;
  const unsigned memory =
      kConfig.sums == config::NormSums::kShared ? ptx::dynamic_shared_memory() : 0;
  norm::NormBackward<kConfig>(params, shared, memory).run();
}

}  // namespace octofold
