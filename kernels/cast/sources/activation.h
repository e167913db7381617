// An activation of x, rounded to the type of x: the cast of what would else have been stored.
#pragma once

#include "kernels/cast/sources/activation_input.h"
#include "kernels/numeric/activation.h"

namespace octofold::cast {

template <config::CastSource kSource, DType kIn, bool kVectors>
class Source<kSource, kIn, kVectors, config::SourceKind::kActivation> {
  static constexpr int kVector = 16 / size_of(kIn);

 public:
  __device__ Source(const config::CastParams& params, long long row, long long col)
      : input_(params, row, params.cols), col_(col) {}

  __device__ void load(int rows, long long cols, int exist, unsigned (&words)[4]) const {
    float gate[kVector], up[kVector];
    input_.load(rows, col_ + cols, exist, true, gate, up);
    float values[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = numeric::activate<kSource.activation>(gate[i], up[i]);
    }
    numeric::narrow<kIn, false>(values, words);
  }

 private:
  ActivationInput<kSource, kIn, kVectors> input_;
  long long col_;
};

}  // namespace octofold::cast
