// An activation's gate and up, or its x: where they are among the columns of x, and how they are
// read.
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/sources/source.h"
#include "kernels/numeric/format_bits.h"
#include "kernels/numeric/vector.h"

namespace octofold::cast {

// One element in FP32.
template <DType kIn>
__device__ inline float load_value(const Storage<kIn>* data) {
  const unsigned word = *data;
  float value[1];
  numeric::widen<kIn>(&word, value);
  return value[0];
}

template <config::CastSource kSource, DType kIn>
class ActivationInput {
  static constexpr DType kStored = kSource.scaled ? kSource.codes : kIn;
  static constexpr int kPiecesOfX = kSource.pieces_of_x();
  static constexpr int kPerPiece =
      kSource.bytes_of(0, 16 / size_of(kIn)) / size_of(kStored);  // elements
  using Element = Storage<kStored>;

 public:
  static constexpr bool kGated = is_gated(kSource.activation);
  static constexpr bool kInterleaved = kGated && kSource.layout == GateLayout::kInterleaved;
  // Elements of the pieces together: gates, then ups, or one by one where they are interleaved.
  static constexpr int kElements = kPiecesOfX * kPerPiece;

  // `width`: how many columns the activation has.
  __device__ ActivationInput(const config::CastParams& params, long long row, long long width)
      : params_(params),
        x_(static_cast<const Element*>(params.x) + row * params.x_stride),
        stride_(params.x_stride),
        row_(row),
        width_(width) {}

  __device__ long long width() const { return width_; }

  // Pieces of a vector of the activation that begins at its column `col`.
  template <typename Take>
  __device__ void for_each_piece(int rows, long long col, Take&& take) const {
    const long long to_second = kInterleaved ? kPerPiece : width_;
    take(Piece<0>(), gate_address(rows, col));
    if constexpr (kPiecesOfX == 2) take(Piece<1>(), gate_address(rows, col) + to_second);
    if constexpr (kSource.scaled) {
      take(Piece<kPiecesOfX>(), scale(rows, gate_column(col)));
      if constexpr (kPiecesOfX == 2) {
        take(Piece<kPiecesOfX + 1>(), scale(rows, gate_column(col) + to_second));
      }
    }
  }

  // Their elements.
  template <int kPieces>
  static __device__ void widen(const unsigned (&pieces)[kPieces][4], float (&values)[kElements]) {
    if constexpr (!kSource.scaled) {
      numeric::widen<kIn>(&pieces[0][0], values);
    } else {
#pragma unroll
      for (int piece = 0; piece < kPiecesOfX; ++piece) {
        float of_piece[kPerPiece];
        numeric::widen<kStored>(pieces[piece], of_piece);
        multiply(of_piece, __uint_as_float(pieces[kPiecesOfX + piece][0]));
#pragma unroll
        for (int i = 0; i < kPerPiece; ++i) values[piece * kPerPiece + i] = of_piece[i];
      }
    }
  }

  // Element by element: of the activation's column `col`.
  __device__ float gate(int rows, long long col) const {
    return value(rows, gate_column(col), gate_address(rows, col));
  }
  __device__ float up(int rows, long long col) const {
    const long long to_up = kInterleaved ? 1 : width_;
    return value(rows, gate_column(col) + to_up, gate_address(rows, col) + to_up);
  }

 private:
  // The gate's column of x. If gates and ups are interleaved, up lies behind its gate.
  static __device__ long long gate_column(long long col) { return kInterleaved ? 2 * col : col; }
  __device__ const Element* gate_address(int rows, long long col) const {
    return x_ + rows * stride_ + gate_column(col);
  }
  __device__ const float* scale(int rows, long long col_of_x) const {
    return params_.x_scale + scale_offset<kSource.granularity>(params_.x_scale_row_stride,
                                                               params_.x_scale_col_stride,
                                                               row_ + rows, col_of_x);
  }
  __device__ float value(int rows, long long col_of_x, const Element* address) const {
    const float value = load_value<kStored>(address);
    if constexpr (!kSource.scaled) return value;
    return numeric::round_to<kIn>(__fmul_rn(value, *scale(rows, col_of_x)));
  }

  // By the scale, rounded to kIn.
  template <int kCount>
  static __device__ void multiply(float (&values)[kCount], float scale) {
#pragma unroll
    for (float& value : values) value = __fmul_rn(value, scale);
    unsigned words[kCount * size_of(kIn) / 4];
    numeric::narrow<kIn, false>(values, words);
    numeric::widen<kIn>(words, values);
  }

  const config::CastParams& params_;
  const Element* x_;
  long long stride_;
  long long row_;
  long long width_;
};

// A vector of values that are worked out one by one.
template <DType kIn, typename ValueAt>
__device__ inline void pack_values(int exist, ValueAt&& value_at, unsigned (&words)[4]) {
  float values[16 / size_of(kIn)];
#pragma unroll
  for (int i = 0; i < 16 / size_of(kIn); ++i) values[i] = i < exist ? value_at(i) : 0.0f;
  numeric::narrow<kIn, false>(values, words);
}

}  // namespace octofold::cast
