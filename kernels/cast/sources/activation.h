// An activation of x, rounded to the type of x: the cast of what would else have been stored.
#pragma once

#include "kernels/cast/sources/activation_input.h"
#include "kernels/numeric/activation.h"

namespace octofold::cast {

template <config::CastSource kSource, DType kIn>
class Source<kSource, kIn, true, config::SourceKind::kActivation>
    : public PiecewiseSource<Source<kSource, kIn, true>, kSource, kIn> {
  static constexpr int kVector = 16 / size_of(kIn);
  using Input = ActivationInput<kSource, kIn>;

 public:
  static constexpr int kPieces = kSource.pieces();

  __device__ Source(const config::CastParams& params, long long row, long long col)
      : input_(params, row, params.cols), col_(col) {}

  template <typename Take>
  __device__ void for_each_piece(int rows, long long cols, Take&& take) const {
    input_.for_each_piece(rows, col_ + cols, take);
  }

  __device__ void make(int /*rows*/, long long /*cols*/, const unsigned (&pieces)[kPieces][4],
                       unsigned (&words)[4]) const {
    float x[Input::kElements], values[kVector];
    Input::widen(pieces, x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float gate = x[Input::kInterleaved ? 2 * i : i];
      const float up = x[Input::kInterleaved ? 2 * i + 1 : Input::kElements - kVector + i];
      values[i] = numeric::activate<kSource.activation>(gate, up);
    }
    numeric::narrow<kIn, false>(values, words);
  }

 private:
  Input input_;
  long long col_;
};

// Element by element.
template <config::CastSource kSource, DType kIn>
class Source<kSource, kIn, false, config::SourceKind::kActivation> {
 public:
  __device__ Source(const config::CastParams& params, long long row, long long col)
      : input_(params, row, params.cols), col_(col) {}

  __device__ void read(int rows, long long cols, int exist, unsigned (&words)[4]) const {
    const auto value_at = [&](int i) {
      const long long col = col_ + cols + i;
      const float gate = input_.gate(rows, col);
      const float up = is_gated(kSource.activation) ? input_.up(rows, col) : 0;
      return numeric::activate<kSource.activation>(gate, up);
    };
    pack_values<kIn>(exist, value_at, words);
  }

 private:
  ActivationInput<kSource, kIn> input_;
  long long col_;
};

}  // namespace octofold::cast
