// x as it is.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/sources/source.h"

namespace octofold::cast {

template <config::CastSource kSource, DType kIn, bool kVectors>
class Source<kSource, kIn, kVectors, config::SourceKind::kPlain> {
  using Input = Storage<kIn>;

 public:
  __device__ Source(const config::CastParams& params, long long row, long long col)
      : x_(static_cast<const Input*>(params.x) + row * params.x_stride + col),
        stride_(params.x_stride) {}

  __device__ void read(int rows, long long cols, int exist, unsigned (&words)[4]) const {
    cast::load<Input, kVectors, 16 / size_of(kIn)>(x_ + rows * stride_ + cols, exist, words);
  }

 private:
  const Input* x_;
  long long stride_;
};

}  // namespace octofold::cast
