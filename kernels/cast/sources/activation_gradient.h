// The gradient by x of an activation of x, from the gradient by the activation, rounded to the type
// of x. Of a gated one it has gate and up as x has them; where they are halves that no tile takes
// together, two tiles read the same values, the second one from cache.
#pragma once

#include "kernels/cast/sources/activation_input.h"
#include "kernels/numeric/activation.h"

namespace octofold::cast {

// The inputs of the gradient, for both ways to read it: in vectors, and element by element.
template <config::CastSource kSource, DType kIn>
struct ActivationGradientInput : ActivationInput<kSource, kIn> {
  __device__ ActivationGradientInput(const config::CastParams& params, long long row)
      : ActivationInput<kSource, kIn>(params, row,
                                      is_gated(kSource.activation) ? params.cols / 2 : params.cols),
        by_value(static_cast<const Storage<kIn>*>(params.gradient) + row * params.gradient_stride),
        stride(params.gradient_stride) {}

  __device__ const Storage<kIn>* gradient(int rows, long long col) const {
    return by_value + rows * stride + col;
  }

  const Storage<kIn>* by_value;
  long long stride;
};

// A vector of gate and up next to each other has one of x, and half of one of the gradient; else
// there are gate, up where there is one, and the gradient. It comes last.
template <config::CastSource kSource, DType kIn>
class Source<kSource, kIn, true, config::SourceKind::kActivationGradient>
    : public PiecewiseSource<Source<kSource, kIn, true>, kSource, kIn> {
  using Input = ActivationGradientInput<kSource, kIn>;
  static constexpr int kVector = 16 / size_of(kIn);
  static constexpr bool kHalves = Input::kGated && !Input::kInterleaved;

 public:
  static constexpr int kPieces = kSource.pieces();

  __device__ Source(const config::CastParams& params, long long row, long long col)
      : input_(params, row), col_(col) {}

  template <typename Take>
  __device__ void for_each_piece(int rows, long long cols, Take&& take) const {
    const long long at = col_ + cols;
    const long long col = Input::kInterleaved ? at / 2 : is_of_up(cols) ? at - input_.width() : at;
    input_.for_each_piece(rows, col, take);
    take(Piece<kPieces - 1>(), input_.gradient(rows, col));
  }

  __device__ void make(int /*rows*/, long long cols, const unsigned (&pieces)[kPieces][4],
                       unsigned (&words)[4]) const {
    if constexpr (Input::kInterleaved) {
      float x[kVector], gradient[kVector / 2], values[kVector];
      Input::widen(pieces, x);
      numeric::widen<kIn>(pieces[kPieces - 1], gradient);
#pragma unroll
      for (int i = 0; i < kVector; i += 2) {
        const float2 both =
            numeric::activation_gradients<kSource.activation>(gradient[i / 2], x[i], x[i + 1]);
        values[i] = both.x;
        values[i + 1] = both.y;
      }
      numeric::narrow<kIn, false>(values, words);
    } else {
      float gates[kVector], ups[kVector];
      gradients(pieces, gates, ups);
      const bool of_up = is_of_up(cols);
#pragma unroll
      for (int i = 0; i < kVector; ++i) gates[i] = of_up ? ups[i] : gates[i];
      numeric::narrow<kIn, false>(gates, words);
    }
  }

  // The same columns of both halves, from a place in the first.
  __device__ void make_halves(const unsigned (&pieces)[kPieces][4], unsigned (&of_gate)[4],
                              unsigned (&of_up)[4]) const {
    float gates[kVector], ups[kVector];
    gradients(pieces, gates, ups);
    numeric::narrow<kIn, false>(gates, of_gate);
    numeric::narrow<kIn, false>(ups, of_up);
  }

 private:
  __device__ bool is_of_up(long long cols) const {
    return kHalves && !kSource.both_halves && col_ + cols >= input_.width();
  }

  static __device__ void gradients(const unsigned (&pieces)[kPieces][4], float (&gates)[kVector],
                                   float (&ups)[kVector]) {
    float x[Input::kElements], gradient[kVector];
    Input::widen(pieces, x);
    numeric::widen<kIn>(pieces[kPieces - 1], gradient);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float up = x[Input::kElements - kVector + i];
      const float2 both = numeric::activation_gradients<kSource.activation>(gradient[i], x[i], up);
      gates[i] = both.x;
      ups[i] = both.y;
    }
  }

  Input input_;
  long long col_;
};

// Element by element: a vector may have columns of either half.
template <config::CastSource kSource, DType kIn>
class Source<kSource, kIn, false, config::SourceKind::kActivationGradient> {
  using Input = ActivationGradientInput<kSource, kIn>;

 public:
  __device__ Source(const config::CastParams& params, long long row, long long col)
      : input_(params, row), col_(col) {}

  __device__ void read(int rows, long long cols, int exist, unsigned (&words)[4]) const {
    const auto value_at = [&](int i) {
      const long long at = col_ + cols + i;
      const bool of_up = Input::kInterleaved ? at % 2 != 0 : at >= input_.width();
      const long long col = Input::kInterleaved ? at / 2 : of_up ? at - input_.width() : at;
      const float gate = input_.gate(rows, col);
      const float up = Input::kGated ? input_.up(rows, col) : 0;
      const float gradient = load_value<kIn>(input_.gradient(rows, col));
      const float2 both = numeric::activation_gradients<kSource.activation>(gradient, gate, up);
      return of_up ? both.y : both.x;
    };
    pack_values<kIn>(exist, value_at, words);
  }

 private:
  Input input_;
  long long col_;
};

}  // namespace octofold::cast
