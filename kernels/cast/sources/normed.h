// x normalized, from the statistics of its rows that a kernel has left before
// (kernels/norm/rows.h): the values that it would have cast.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/norm_operands.h"
#include "kernels/cast/sources/source.h"

namespace octofold::cast {

// Pieces are x and its row's statistics. Operands are the same for many rows: they come from cache.
template <config::CastSource kSource, DType kIn>
class Source<kSource, kIn, true, config::SourceKind::kNormed>
    : public PiecewiseSource<Source<kSource, kIn, true>, kSource, kIn> {
  using Input = Storage<kIn>;

 public:
  static constexpr int kPieces = kSource.pieces();

  __device__ Source(const config::CastParams& params, long long row, long long col)
      : params_(params), row_(row), col_(col) {}

  template <typename Take>
  __device__ void for_each_piece(int rows, long long cols, Take&& take) const {
    const Input* x = static_cast<const Input*>(params_.x);
    take(Piece<0>(), x + (row_ + rows) * params_.x_stride + col_ + cols);
    take(Piece<1>(), params_.rstd + row_ + rows);
    if constexpr (kSource.norm.centres()) take(Piece<2>(), params_.mean + row_ + rows);
  }

  __device__ void make(int rows, long long cols, const unsigned (&pieces)[kPieces][4],
                       unsigned (&words)[4]) const {
    constexpr int kVector = 16 / size_of(kIn);
    NormVectors<kSource.norm, kIn, true> operands;
    operands.load(params_.norm, row_ + rows, col_ + cols, kVector);
    const float mean = kSource.norm.centres() ? __uint_as_float(pieces[kPieces - 1][0]) : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = pieces[0][i];
    normalize(operands, mean, __uint_as_float(pieces[1][0]), kVector, words);
  }

 private:
  const config::CastParams& params_;
  long long row_, col_;
};

// Element by element.
template <config::CastSource kSource, DType kIn>
class Source<kSource, kIn, false, config::SourceKind::kNormed> {
  using Input = Storage<kIn>;

 public:
  __device__ Source(const config::CastParams& params, long long row, long long col)
      : params_(params), row_(row), col_(col) {}

  __device__ void read(int rows, long long cols, int exist, unsigned (&words)[4]) const {
    const long long row = row_ + rows, col = col_ + cols;
    const Input* x = static_cast<const Input*>(params_.x) + row * params_.x_stride + col;
    cast::load<Input, false, 16 / size_of(kIn)>(x, exist, words);
    if (exist <= 0) return;
    NormVectors<kSource.norm, kIn, false> operands;
    operands.load(params_.norm, row, col, exist);
    const float mean = kSource.norm.centres() ? params_.mean[row] : 0;
    normalize(operands, mean, params_.rstd[row], exist, words);
  }

 private:
  const config::CastParams& params_;
  long long row_, col_;
};

}  // namespace octofold::cast
