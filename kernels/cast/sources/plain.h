// x as it is.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/sources/source.h"

namespace octofold::cast {

template <DType kIn, bool kVectors>
class Source<config::CastSource::kPlain, kIn, kVectors> {
 public:
  explicit __device__ Source(const config::CastParams& params) : params_(params) {}

  __device__ void load(long long row, long long col, int exist, unsigned (&words)[4]) const {
    using Input = Storage<kIn>;
    const Input* x = static_cast<const Input*>(params_.x) + row * params_.x_stride + col;
    cast::load<Input, kVectors, 16 / size_of(kIn)>(x, exist, words);
  }

 private:
  const config::CastParams& params_;
};

}  // namespace octofold::cast
