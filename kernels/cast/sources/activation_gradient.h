// The gradient by x of an activation of x, from the gradient by the activation, rounded to the type
// of x. Of a gated one it has gate and up as x has them; where they are halves, two tiles read the
// same values, the second one from cache.
#pragma once

#include "kernels/cast/sources/activation_input.h"
#include "kernels/numeric/activation.h"

namespace octofold::cast {

template <config::CastSource kSource, DType kIn, bool kVectors>
class Source<kSource, kIn, kVectors, config::SourceKind::kActivationGradient> {
  using Input = ActivationInput<kSource, kIn, kVectors>;
  using Element = Storage<kIn>;
  static constexpr int kVector = 16 / size_of(kIn);
  static constexpr bool kHalves = Input::kGated && !Input::kInterleaved;

 public:
  __device__ Source(const config::CastParams& params, long long row, long long col)
      : width_(Input::kGated ? params.cols / 2 : params.cols),
        input_(params, row, width_),
        gradient_(static_cast<const Element*>(params.gradient) + row * params.gradient_stride),
        stride_(params.gradient_stride),
        col_(col) {}

  __device__ void load(int rows, long long cols, int exist, unsigned (&words)[4]) const {
    float values[kVector];
    if constexpr (Input::kInterleaved) {
      float gates[kVector / 2], ups[kVector / 2];
      gradients((col_ + cols) / 2, rows, exist / 2, true, gates, ups);
#pragma unroll
      for (int i = 0; i < kVector / 2; ++i) {
        values[2 * i] = gates[i];
        values[2 * i + 1] = ups[i];
      }
    } else if constexpr (kHalves && !kVectors) {  // a vector may have columns of either half
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        float gate[1], up[1];
        const long long col = col_ + cols + i;
        const bool of_up = col >= width_;
        gradients(of_up ? col - width_ : col, rows, exist - i, !of_up, gate, up);
        values[i] = of_up ? up[0] : gate[0];
      }
    } else {
      float gates[kVector], ups[kVector];
      const long long col = col_ + cols;
      const bool of_up = kHalves && col >= width_;
      gradients(of_up ? col - width_ : col, rows, exist, !of_up, gates, ups);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = of_up ? ups[i] : gates[i];
    }
    numeric::narrow<kIn, false>(values, words);
  }

 private:
  // By gate and by up of kCount neighbours of the activation's columns.
  template <int kCount>
  __device__ void gradients(long long col, int rows, int exist, bool needs_up,
                            float (&gates)[kCount], float (&ups)[kCount]) const {
    float gate[kCount], up[kCount], gradient[kCount];
    input_.load(rows, col, exist, needs_up, gate, up);
    load_values<kIn, kVectors>(gradient_ + rows * stride_ + col, exist, gradient);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const numeric::Curve curve = numeric::curve<kSource.activation>(gate[i]);
      const float slope = Input::kGated ? __fmul_rn(curve.slope, up[i]) : curve.slope;
      gates[i] = __fmul_rn(gradient[i], slope);
      if constexpr (Input::kGated) ups[i] = __fmul_rn(gradient[i], curve.value);
    }
  }

  long long width_;  // columns of the activation
  Input input_;
  const Element* gradient_;
  long long stride_;
  long long col_;
};

}  // namespace octofold::cast
