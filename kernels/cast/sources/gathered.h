// Rows of x that are gathered: each comes from the row that its flat place belongs to, maybe times
// the place's factor, rounded to the type of x.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/sources/source.h"
#include "kernels/numeric/vector.h"

namespace octofold::cast {

// Negative ones are large.
__device__ inline bool comes_from_somewhere(const config::CastParams& params, int place) {
  return static_cast<unsigned>(place) < params.places;
}

// True if a row, one that there is, is written in the cast of rows. Gathered rows that come from
// nowhere are not.
template <config::CastSource kSource>
__device__ inline bool is_written(const config::CastParams& params, long long row) {
  if constexpr (kSource.kind == config::SourceKind::kGathered) {
    return comes_from_somewhere(params, params.sources[row]);
  }
  return true;
}

template <config::CastSource kSource, DType kIn, bool kVectors>
class Source<kSource, kIn, kVectors, config::SourceKind::kGathered> {
  using Input = Storage<kIn>;
  static constexpr int kVector = 16 / size_of(kIn);
  static constexpr int kMostRows = 8;  // that a thread reads

 public:
  // All rows' places are loaded before the first is waited for.
  __device__ Source(const config::CastParams& params, long long row, long long col)
      : x_(static_cast<const Input*>(params.x) + col), stride_(params.x_stride) {
    const int exist = at_most(params.rows - row, kMostRows);
    int places[kMostRows];
#pragma unroll
    for (int i = 0; i < kMostRows; ++i) places[i] = i < exist ? params.sources[row + i] : -1;
#pragma unroll
    for (int i = 0; i < kMostRows; ++i) {
      const bool found = comes_from_somewhere(params, places[i]);
      found_ |= unsigned{found} << i;
      rows_[i] = found ? params.slots.quotient(static_cast<unsigned>(places[i])) : 0;
      if constexpr (kSource.factors) factors_[i] = found ? params.factors[places[i]] : 0.0f;
    }
  }

  __device__ void read(int rows, long long cols, int exist, unsigned (&words)[4]) const {
    cast::load<Input, kVectors, kVector>(x_ + rows_[rows] * stride_ + cols,
                                         (found_ >> rows & 1) != 0 ? exist : 0, words);
  }

  __device__ void multiply(int rows, int exist, unsigned (&words)[4]) const {
    float values[kVector];
    numeric::widen<kIn, true>(words, values);  // rows as they are may have been widened before
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const bool exists = kVectors ? exist > 0 : i < exist;
      values[i] = exists ? __fmul_rn(values[i], factors_[rows]) : 0.0f;
    }
    numeric::narrow<kIn, false>(values, words);
  }

 private:
  const Input* x_;
  long long stride_;
  unsigned found_ = 0;  // bit i: whether row i from the first on comes from somewhere
  unsigned rows_[kMostRows];
  float factors_[kMostRows];
};

}  // namespace octofold::cast
