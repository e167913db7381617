// What casts read their values from. Each SourceKind is a specialization, in a file of its own:
//
//   // At (row, col) of the matrix [rows, cols] that is cast.
//   __device__ Source(const config::CastParams& params, long long row, long long col);
//   // One vector of values, packed as kIn, from so many rows and columns further on. The first
//   // `exist` exist (where kVectors, all or none); the others are zeros.
//   __device__ void load(int rows, long long cols, int exist, unsigned (&words)[4]) const;
//
// A value may be asked for more than once (rows that are reread, scales of four steps), and has to
// be the same each time.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/config/cast_config.h"
#include "kernels/config/cast_params.h"

namespace octofold::cast {

template <config::CastSource kSource, DType kIn, bool kVectors,
          config::SourceKind kKind = kSource.kind>
class Source;

}  // namespace octofold::cast
