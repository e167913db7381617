// x normalized, from the statistics of its rows that a kernel has left before (norm_rows.h): the
// values that it would have cast.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/norm_operands.h"
#include "kernels/cast/sources/source.h"

namespace octofold::cast {

template <config::CastSource kSource, DType kIn, bool kVectors>
class Source<kSource, kIn, kVectors, config::SourceKind::kNormed> {
  using Input = Storage<kIn>;

 public:
  __device__ Source(const config::CastParams& params, long long row, long long col)
      : params_(params),
        x_(static_cast<const Input*>(params.x) + row * params.x_stride + col),
        row_(row),
        col_(col) {}

  __device__ void load(int rows, long long cols, int exist, unsigned (&words)[4]) const {
    cast::load<Input, kVectors, 16 / size_of(kIn)>(x_ + rows * params_.x_stride + cols, exist,
                                                   words);
    if (exist <= 0) return;
    NormVectors<kSource.norm, kIn, kVectors> operands;
    operands.load(params_.norm, row_ + rows, col_ + cols, exist);
    const float mean = kSource.norm.centres() ? params_.mean[row_ + rows] : 0;
    normalize<kSource.norm, kIn>(operands, mean, params_.rstd[row_ + rows], exist, words);
  }

 private:
  const config::CastParams& params_;
  const Input* x_;
  long long row_, col_;
};

}  // namespace octofold::cast
