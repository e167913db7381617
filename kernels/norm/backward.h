// The gradient by a norm's input, of a span of rows to a block. With n = (x - mean) · rstd and g =
// dy · weight · (1 + scale), where these are:
//
//   dx = rstd · (g - n · mean(g · n) - mean(g)) + the residual's gradient
//
// the last mean being kLayer's only. Each thread has the same 16 columns of all rows, so that it
// sums dy · n and dy over the rows of the span in registers, without exchange. A row's dx takes one
// barrier, and the next row arrives meanwhile. The sums go to the workspace, a row for each span,
// where gradients.h adds them in their order. Rows of more than 8192 columns are read twice, and
// their sums gather in the workspace itself.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/norm_operands.h"
#include "kernels/cast/reductions.h"
#include "kernels/norm/config/norm.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/control.h"

namespace octofold {
namespace norm {

using config::NormBackwardConfig;
using config::NormBackwardParams;

template <NormBackwardConfig kConfig>
class NormBackward {
  static constexpr int kVector = kConfig.vector();
  static constexpr int kVectors = kConfig.vectors_per_thread;
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kChunk = kThreads * kVectors * kVector;  // columns
  static constexpr DType kIn = kConfig.in;
  static constexpr bool kCentres = kConfig.form.centres();
  using Input = cast::Storage<kIn>;
  using Words = unsigned[kVectors][4];

 public:
  struct Shared {
    float products[2][kWarps], gradients[2][kWarps];  // of one row, and of the next
  };

  __device__ NormBackward(const NormBackwardParams& params, Shared& shared)
      : params_(params), shared_(shared), cols_(params.cols) {
    batch_ = blockIdx.x / params.blocks_per_batch;
    const long long span = blockIdx.x - batch_ * params.blocks_per_batch;
    const long long end = (batch_ + 1) * params.operands.rows_per_batch;
    first_ = batch_ * params.operands.rows_per_batch + span * params.rows_per_block;
    last_ = first_ + params.rows_per_block < end ? first_ + params.rows_per_block : end;
  }

  __device__ void run() {
    if constexpr (kConfig.wide) {
      run_wide();
    } else {
      run_held();
    }
  }

 private:
  // The factors of dy, and the sums, of this thread's columns.
  struct Columns {
    float factors[kVectors][kVector];
    float products[kVectors][kVector];
    float offsets[kVectors][kVector];
  };
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
    load_factors(0, columns);
    clear_sums(columns);
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

  // Chunk by chunk, twice, with the columns' sums in the workspace: it is this block's own there.
  __device__ void run_wide() {
    Columns columns;
    Words x, dy;
    if (first_ >= last_) {
      clear_sums(columns);
      for (long long col = 0; col < cols_; col += kChunk) store_sums(col, columns);
    }
    for (long long row = first_; row < last_; ++row) {
      const float rstd = params_.rstd[row], mean = mean_of_row(row);
      RowSums sums;
      for (long long col = 0; col < cols_; col += kChunk) {
        load_row(row, col, x, dy);
        load_factors(col, columns);
        if (row == first_) {
          clear_sums(columns);
        } else {
          load_sums(col, columns);
        }
        add(col, x, dy, mean, rstd, columns, sums);
        store_sums(col, columns);
      }
      share(sums, static_cast<int>((row - first_) % 2));
      for (long long col = 0; col < cols_; col += kChunk) {
        load_row(row, col, x, dy);
        load_factors(col, columns);
        store_dx(row, col, x, dy, mean, rstd, columns, sums);
      }
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

  // 0 where there is no column, which leaves it out of every sum.
  __device__ void load_factors(long long col, Columns& columns) const {
    constexpr auto kWeight = kConfig.form.weight, kScale = kConfig.form.scale;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int count = exist(col, i);
      float weight[kVector], scale[kVector];
      load_operand<kWeight>(params_.operands.weight, column(col, i), count, weight);
      load_operand<kScale>(params_.operands.scale,
                           batch_ * params_.operands.scale_stride + column(col, i), count, scale);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        float factor = j < count ? 1.0f : 0.0f;
        if constexpr (kWeight != config::NormOperand::kNone) factor = weight[j];
        if constexpr (kScale != config::NormOperand::kNone) {
          factor = cast::modulated(factor, scale[j]);
        }
        columns.factors[i][j] = factor;
      }
    }
  }

  template <config::NormOperand kOperand>
  static __device__ void load_operand(const void* data, long long offset, int exist,
                                      float (&values)[kVector]) {
    cast::OperandVector<kOperand, kIn, false> vector;
    vector.load(data, offset, exist);
    vector.widen(values);
  }

  static __device__ void clear_sums(Columns& columns) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) columns.products[i][j] = columns.offsets[i][j] = 0;
    }
  }

  __device__ void add(long long col, const Words& x, const Words& dy, float mean, float rstd,
                      Columns& columns, RowSums& sums) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float n[kVector], of_y[kVector];
      widen<false>(x[i], dy[i], exist(col, i), mean, rstd, n, of_y);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if constexpr (kConfig.sums_products) {
          columns.products[i][j] = __fmaf_rn(of_y[j], n[j], columns.products[i][j]);
        }
        if constexpr (kConfig.sums_offsets) {
          columns.offsets[i][j] = __fadd_rn(columns.offsets[i][j], of_y[j]);
        }
        const float g = __fmul_rn(of_y[j], columns.factors[i][j]);
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
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        float value = __fmul_rn(of_y[j], columns.factors[i][j]);
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

  // The workspace's rows have any alignment: element by element, of which neighbours are stored
  // together by the lanes of a warp.
  __device__ void store_sums(long long col, const Columns& columns) const {
    if constexpr (kConfig.sums_products) store_sums(params_.products, col, columns.products);
    if constexpr (kConfig.sums_offsets) store_sums(params_.offsets, col, columns.offsets);
  }
  __device__ void store_sums(float* sums, long long col,
                             const float (&values)[kVectors][kVector]) const {
    float* row = sums + blockIdx.x * cols_;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int count = exist(col, i);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (j < count) row[column(col, i) + j] = values[i][j];
      }
    }
  }

  __device__ void load_sums(long long col, Columns& columns) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int count = exist(col, i);
      const long long at = blockIdx.x * cols_ + column(col, i);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        columns.products[i][j] = kConfig.sums_products && j < count ? params_.products[at + j] : 0;
        columns.offsets[i][j] = kConfig.sums_offsets && j < count ? params_.offsets[at + j] : 0;
      }
    }
  }

  const NormBackwardParams& params_;
  Shared& shared_;
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
  norm::NormBackward<kConfig>(params, shared).run();
}

}  // namespace octofold
