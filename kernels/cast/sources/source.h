// The sources that casts get their values from. Each SourceKind is a specialization, in a file of
// its own, at (row, col) of the matrix [rows, cols] that is cast:
//
//   __device__ Source(const config::CastParams& params, long long row, long long col);
//   // A vector of values, packed as kIn, from so many rows and columns further on. The first
//   // `exist` exist (where kVectors, all or none); the others are zeros.
//   __device__ void read(int rows, long long cols, int exist, unsigned (&words)[4]) const;
//
// A source whose vectors are worked out from several others (PiecewiseSource) says from which, so
// that all of a thread's can be on their way before it waits for the first.
//
// A source that reads vectors where they lie, to be multiplied (CastSource::factors), leaves that
// to a step of its own, so that all of a thread's loads are on their way before it waits for the
// first:
//
//   // Multiplies the words that read() left by the row's factor.
//   __device__ void multiply(int rows, int exist, unsigned (&words)[4]) const;
//
// A value may be asked for more than once (rows that are reread, scales of four steps), and has to
// be the same each time.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/cast/access.h"
#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/ptx/global_memory.h"

namespace octofold::cast {

template <config::CastSource kSource, DType kIn, bool kVectors,
          config::SourceKind kKind = kSource.kind>
class Source;

// The members that Derived has for a vector, of the pieces that CastSource counts:
//
//   // Calls take(integral constant, address) with the number and the place of each piece.
//   template <typename Take>
//   __device__ void for_each_piece(int rows, long long cols, Take&& take) const;
//   // The vector at so many rows and columns further on, made from them.
//   __device__ void make(int rows, long long cols, const unsigned (&pieces)[kPieces][4],
//                        unsigned (&words)[4]) const;
template <typename Derived, config::CastSource kSource, DType kIn>
class PiecewiseSource {
 public:
  static constexpr int kPieces = kSource.pieces();

  __device__ void read(int rows, long long cols, int exist, unsigned (&words)[4]) const {
    unsigned pieces[kPieces][4];
    if (exist > 0) {
      derived().for_each_piece(rows, cols, [&](auto piece, const void* address) {
        constexpr int kBytes = kSource.bytes_of(piece, 16 / size_of(kIn));
        unsigned loaded[kBytes / 4];
        ptx::load_global<kBytes>(address, loaded);
#pragma unroll
        for (int i = 0; i < kBytes / 4; ++i) pieces[piece][i] = loaded[i];
      });
      derived().make(rows, cols, pieces, words);
    } else {
#pragma unroll
      for (unsigned& word : words) word = 0;
    }
  }

 private:
  __device__ const Derived& derived() const { return static_cast<const Derived&>(*this); }
};

// The number of a piece, known to the compiler.
template <int kNumber>
struct Piece {
  constexpr operator int() const { return kNumber; }
};

// x as it is.

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
