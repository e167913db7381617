// Norms of rows by groups of threads: the residual is added, then come the row's statistics, its
// normalized values, and their cast, with a scale for the row or for each 128 columns of it, or
// these values themselves. A row goes to 32 to 512 threads, four vectors of 16 bytes to each, held
// in registers from the first of these steps to the last, packed as they were read; a row that does
// not fit is read again for each.
//
// Issue binds norms, not memory: some 36 of 50 µs are instructions (counted), where memory takes
// 43. Tried and lost: blocks that stay, with the next rows in a ring in shared memory (RMSNorm 8192
// × 7168 84.8 → 86.1 % of the rate of a copy, 16384 × 4096 86.8 → 76.7); a warp to each row without
// any barrier (84.4 → 59.6 %), as shared memory holds 15 rows and a scheduler has 3.4 warps
// (docs/notes/casts.md).
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/norm_operands.h"
#include "kernels/cast/reductions.h"
#include "kernels/cast/unit.h"
#include "kernels/norm/config/norm.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/control.h"

namespace octofold {
namespace cast {

using config::NormParams;
using config::NormRowConfig;

template <NormRowConfig kConfig>
class NormRows {
  static constexpr int kVector = kConfig.format.vector();
  static constexpr int kVectors = kConfig.vectors_per_thread;
  static constexpr int kThreads = kConfig.threads_per_row;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kBlockWarps = kConfig.threads() / 32;
  static constexpr int kChunk = kThreads * kVectors * kVector;  // columns
  static constexpr int kLanesPerUnit = kConfig.lanes_per_unit();
  static constexpr DType kIn = kConfig.format.in;
  static constexpr bool kBlockScales = kConfig.format.granularity == Granularity::kBlock1x128;
  using Caster = CasterOf<kConfig.format>;
  using Input = Storage<kIn>;
  using Operands = NormVectors<kConfig.form, kIn, kConfig.vector_loads>;

 public:
  struct Shared {
    float sums[kBlockWarps], squares[kBlockWarps];
    unsigned magnitudes[kBlockWarps];
    // The casters of each warp, for the units of each of its vectors.
    Caster casters[kBlockScales ? kBlockWarps : 1][kVectors][32 / kLanesPerUnit];
  };

  __device__ NormRows(const NormParams& params, Shared& shared) : params_(params), shared_(shared) {
    row_ = static_cast<long long>(blockIdx.x) * kConfig.rows_per_block() + threadIdx.x / kThreads;
    lane_ = static_cast<int>(threadIdx.x % kThreads);
    // Threads without a row go along, as they are needed in exchanges.
    cols_ = row_ < params.rows ? params.cols : 0;
  }

  __device__ void run() {
    load_first(0);
    if constexpr (kConfig.early_operands) load_operands(0);
    find_statistics();
    if (lane_ == 0 && row_ < params_.rows) {
      params_.rstd[row_] = rstd_;
      if constexpr (kConfig.form.centres()) params_.mean[row_] = mean_;
    }
    if constexpr (kConfig.output == config::NormOutput::kNumbers) {
      store_numbers();
    } else if constexpr (kConfig.casts()) {
      if constexpr (kBlockScales) {
        cast_blocks();
      } else {
        cast_row();
      }
    }
  }

 private:
  // First column of this thread's vector i in the chunk that begins at `col`, and how many of its
  // elements exist.
  __device__ long long column(long long col, int i) const {
    return col + (i * kThreads + lane_) * kVector;
  }
  __device__ int exist(long long col, int i) const {
    return at_most(cols_ - column(col, i), kVector);
  }

  // Calls body() for each chunk, held or loaded once more. Threads without a row go along.
  template <typename Body>
  __device__ void for_each_chunk(Body&& body) {
    if constexpr (!kConfig.reread) {
      body(0);
    } else {
      for (long long col = 0; col < params_.cols; col += kChunk) {
        load_again(col);
        body(col);
      }
    }
  }

  // Loads what is normalized, for the first time: the sum is rounded, and written.
  __device__ void load_first(long long col) {
    const Input* x = static_cast<const Input*>(params_.x) + row_ * params_.x_stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      cast::load<Input, kConfig.vector_loads, kVector>(x + column(col, i), exist(col, i), x_[i]);
    }
    if constexpr (kConfig.adds_residual) {
      unsigned residual[kVectors][4];
      load_own(params_.residual, params_.residual_stride, col, residual);
      Input* sum = static_cast<Input*>(params_.sum) + row_ * params_.sum_stride;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float left[kVector], right[kVector];
        numeric::widen<kIn>(x_[i], left);
        numeric::widen<kIn>(residual[i], right);
#pragma unroll
        for (int j = 0; j < kVector; ++j) left[j] = __fadd_rn(left[j], right[j]);
        numeric::narrow<kIn, false>(left, x_[i]);
        cast::store<Input, kConfig.vector_loads, kVector>(sum + column(col, i), exist(col, i),
                                                          x_[i]);
      }
    }
  }

  // The same values once more.
  __device__ void load_again(long long col) {
    if constexpr (kConfig.adds_residual) {
      load_own(params_.sum, params_.sum_stride, col, x_);
    } else {
      load_first(col);
    }
  }

  // Loads from a matrix that this thread may write too.
  __device__ void load_own(const void* data, long long stride, long long col,
                           unsigned (&words)[kVectors][4]) const {
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

  __device__ void load_operands(long long col) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      operands_[i].load(params_.operands, row_, column(col, i), exist(col, i));
    }
  }

  // Finds rstd from the mean of squares, or the mean, then rstd from squared differences to it.
  __device__ void find_statistics() {
    PartialSums first;
    first_pass(0, first);
    if constexpr (kConfig.reread) {
      for (long long col = kChunk; col < params_.cols; col += kChunk) {
        load_first(col);
        first_pass(col, first);
      }
    }
    const float sum = cast::mean_of(sum_of_warps<kWarps>(first.total(), shared_.sums), cols_);
    if constexpr (!kConfig.form.centres()) {
      rstd_ = cast::reciprocal_deviation(sum, params_.epsilon);
    } else {
      mean_ = sum;
      PartialSums squares;
      for_each_chunk([&](long long col) { add_squared_differences(col, squares); });
      const float square =
          cast::mean_of(sum_of_warps<kWarps>(squares.total(), shared_.squares), cols_);
      rstd_ = cast::reciprocal_deviation(square, params_.epsilon);
    }
  }

  __device__ void first_pass(long long /*col*/, PartialSums& sums) const {
#pragma unroll
    for (const auto& vector : x_) {
      float values[kVector];
      numeric::widen<kIn>(vector, values);
      if constexpr (kConfig.form.centres()) {
        sums.add(values);
      } else {
        sums.add_squares(values);
      }
    }
  }

  __device__ void add_squared_differences(long long col, PartialSums& sums) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float values[kVector];
      numeric::widen<kIn>(x_[i], values);
      const int count = exist(col, i);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const bool exists = kConfig.vector_loads ? count > 0 : j < count;
        values[j] = exists ? __fadd_rn(values[j], -mean_) : 0;
      }
      sums.add_squares(values);
    }
  }

  // y takes the place of x.
  __device__ void normalize_held(long long col) {
    if constexpr (kConfig.early_operands) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        normalize<kConfig.form, kIn>(operands_[i], mean_, rstd_, exist(col, i), x_[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        Operands operands;
        operands.load(params_.operands, row_, column(col, i), exist(col, i));
        normalize<kConfig.form, kIn>(operands, mean_, rstd_, exist(col, i), x_[i]);
      }
    }
  }

  __device__ void store_numbers() {
    Input* y = static_cast<Input*>(params_.y) + row_ * params_.y_stride;
    for_each_chunk([&](long long col) {
      normalize_held(col);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        cast::store<Input, kConfig.vector_loads, kVector>(y + column(col, i), exist(col, i), x_[i]);
      }
    });
  }

  // One scale for the row.
  __device__ void cast_row() {
    unsigned magnitudes = 0;
    for_each_chunk([&](long long col) {
      normalize_held(col);
#pragma unroll
      for (const auto& vector : x_) {
        magnitudes = numeric::larger<kIn>(magnitudes, largest_of_vector<kIn>(vector));
      }
    });
    magnitudes = largest_of_warps<kIn, kWarps>(magnitudes, shared_.magnitudes);
    const bool owner = lane_ == 0 && row_ < params_.rows;
    float* scale = params_.target.scale + row_ * params_.target.scale_row_stride;
    const Caster caster = Caster::make(
        write_scale<kConfig.format>(owner ? scale : nullptr, numeric::largest<kIn>(magnitudes)));
    const auto store_all = [&](long long col) {
      if (caster.is_unusual()) {
        store<true>(col, [&](int) { return caster; });
      } else {
        store<false>(col, [&](int) { return caster; });
      }
    };
    if constexpr (!kConfig.reread) {
      store_all(0);
    } else {
      for_each_chunk([&](long long col) {
        normalize_held(col);
        store_all(col);
      });
    }
  }

  // A scale for each 128 columns, which lanes of one warp hold.
  __device__ void cast_blocks() {
    const unsigned warp = threadIdx.x / 32;
    const int lane = lane_ % 32;
    for_each_chunk([&](long long col) {
      normalize_held(col);
      const bool unusual = make_casters(col, warp, lane);
      __syncwarp();
      const auto caster = [&](int i) { return shared_.casters[warp][i][lane / kLanesPerUnit]; };
      if (unusual) {
        store<true>(col, caster);
      } else {
        store<false>(col, caster);
      }
      if constexpr (kConfig.reread) __syncwarp();  // the casters have been read
    });
  }

  // A scale to each lane. Returns whether any caster of the warp is unusual.
  __device__ bool make_casters(long long col, unsigned warp, int lane) {
    unsigned magnitudes[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) magnitudes[i] = largest_of_vector<kIn>(x_[i]);
    const unsigned of_unit = largest_of_one<kIn, kLanesPerUnit>(magnitudes, lane);

    constexpr int kLanesPerVector = kLanesPerUnit / kVectors;
    const int vector = lane % kLanesPerUnit / kLanesPerVector;
    const int unit_of_warp = lane / kLanesPerUnit;
    // The unit's first column, which is that of its first lane.
    const long long first =
        col + (vector * kThreads + lane_ / kLanesPerUnit * kLanesPerUnit) * kVector;
    const bool owner = lane % kLanesPerVector == 0;
    float* scale = params_.target.scale + row_ * params_.target.scale_row_stride +
                   first / kScaleBlock * params_.target.scale_col_stride;
    const Caster caster = Caster::make(write_scale<kConfig.format>(
        owner && first < cols_ ? scale : nullptr, numeric::largest<kIn>(of_unit)));
    if (owner) shared_.casters[warp][vector][unit_of_warp] = caster;
    if constexpr (Caster::kMayBeUnusual) {
      return __any_sync(0xFFFFFFFFu, caster.is_unusual());
    }
    return false;
  }

  template <bool kUnusual, typename CasterOfVector>
  __device__ void store(long long col, CasterOfVector&& caster_of) const {
    unsigned char* codes = params_.target.codes + row_ * params_.target.codes_stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float values[kVector];
      numeric::widen<kIn>(x_[i], values);
      const Caster caster = caster_of(i);
      caster.template apply<kUnusual>(values);
      unsigned words[kVector / 4];
      numeric::narrow<kConfig.format.out, kConfig.format.saturate>(values, words);
      cast::store<unsigned char, kConfig.vector_stores, kVector>(codes + column(col, i),
                                                                 exist(col, i), words);
    }
  }

  const NormParams& params_;
  Shared& shared_;
  long long row_;
  long long cols_;
  int lane_;
  float mean_ = 0, rstd_ = 0;
  unsigned x_[kVectors][4];
  Operands operands_[kConfig.early_operands ? kVectors : 1];
};

}  // namespace cast

template <config::NormRowConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(),
                                  ptx::resident_blocks(kConfig.resident_blocks()))
    norm_row_kernel(const __grid_constant__ config::NormParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  __shared__ typename cast::NormRows<kConfig>::Shared shared;
  cast::NormRows<kConfig>(params, shared).run();
}

}  // namespace octofold
