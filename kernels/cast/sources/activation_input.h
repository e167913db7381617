// Where an activation's gate and up are, or its x, among the columns of x.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/sources/source.h"
#include "kernels/numeric/vector.h"

namespace octofold::cast {

template <config::CastSource kSource, DType kIn>
class ActivationInput {
  using Element = Storage<kIn>;

 public:
  static constexpr bool kGated = is_gated(kSource.activation);
  static constexpr bool kInterleaved = kGated && kSource.layout == GateLayout::kInterleaved;

  // `width`: how many columns the activation has.
  __device__ ActivationInput(const config::CastParams& params, long long row, long long width)
      : x_(static_cast<const Element*>(params.x) + row * params.x_stride),
        stride_(params.x_stride),
        width_(width) {}

  __device__ long long width() const { return width_; }
  // Of the activation's column `col`: where interleaved, up lies behind its gate.
  __device__ const Element* gate(int rows, long long col) const {
    return x_ + rows * stride_ + (kInterleaved ? 2 * col : col);
  }
  __device__ const Element* up(int rows, long long col) const {
    return gate(rows, col) + (kInterleaved ? 1 : width_);
  }

 private:
  const Element* x_;
  long long stride_;
  long long width_;
};

// One element in FP32.
template <DType kIn>
__device__ inline float load_value(const Storage<kIn>* data) {
  const unsigned word = *data;
  float value[1];
  numeric::widen<kIn>(&word, value);
  return value[0];
}

// A vector of values that are worked out one by one.
template <DType kIn, typename ValueAt>
__device__ inline void pack_values(int exist, ValueAt&& value_at, unsigned (&words)[4]) {
  float values[16 / size_of(kIn)];
#pragma unroll
  for (int i = 0; i < 16 / size_of(kIn); ++i) values[i] = i < exist ? value_at(i) : 0.0f;
  numeric::narrow<kIn, false>(values, words);
}

}  // namespace octofold::cast
