// What an activation is worked out from: gate and up, or x alone, as FP32 values.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/sources/source.h"
#include "kernels/numeric/vector.h"

namespace octofold::cast {

// kCount values at `data`, of which the first `exist` exist (where kVectors, all or none); the
// others are zeros.
template <DType kIn, bool kVectors, int kCount>
__device__ inline void load_values(const Storage<kIn>* data, int exist, float (&values)[kCount]) {
  constexpr int kLoad = !kVectors ? 1 : kCount < 16 / size_of(kIn) ? kCount : 16 / size_of(kIn);
#pragma unroll
  for (int first = 0; first < kCount; first += kLoad) {
    unsigned words[kVectors ? kLoad * size_of(kIn) / 4 : 1] = {};
    if constexpr (kVectors) {
      cast::load<Storage<kIn>, true, kLoad>(data + first, exist - first, words);
    } else if (first < exist) {
      words[0] = data[first];
    }
    float part[kLoad];
    numeric::widen<kIn>(words, part);
#pragma unroll
    for (int i = 0; i < kLoad; ++i) values[first + i] = part[i];
  }
}

template <config::CastSource kSource, DType kIn, bool kVectors>
class ActivationInput {
  using Input = Storage<kIn>;

 public:
  static constexpr bool kGated = is_gated(kSource.activation);
  static constexpr bool kInterleaved = kGated && kSource.layout == GateLayout::kInterleaved;

  // `width`: how many columns the activation has.
  __device__ ActivationInput(const config::CastParams& params, long long row, long long width)
      : x_(static_cast<const Input*>(params.x) + row * params.x_stride),
        stride_(params.x_stride),
        width_(width) {}

  // kCount neighbours of the activation's columns, from `col` on; as Source::load(). `up` is read
  // where it is needed.
  template <int kCount>
  __device__ void load(int rows, long long col, int exist, bool needs_up, float (&gate)[kCount],
                       float (&up)[kCount]) const {
    const Input* row = x_ + rows * stride_;
    if constexpr (kInterleaved) {
      float pairs[2 * kCount];
      load_values<kIn, kVectors>(row + 2 * col, 2 * exist, pairs);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        gate[i] = pairs[2 * i];
        up[i] = pairs[2 * i + 1];
      }
    } else {
      load_values<kIn, kVectors>(row + col, exist, gate);
      if constexpr (kGated)
        load_values<kIn, kVectors>(row + width_ + col, needs_up ? exist : 0, up);
    }
  }

 private:
  const Input* x_;
  long long stride_;
  long long width_;
};

}  // namespace octofold::cast
