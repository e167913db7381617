// What casts read their values from. Each CastSource is a specialization, in a file of its own:
//
//   explicit __device__ Source(const config::CastParams& params);
//   // One vector of values of the matrix [rows, cols] that is cast, from (row, col) on, packed as
//   // kIn. The first `exist` exist (where kVectors, all or none); the others are zeros.
//   __device__ void load(long long row, long long col, int exist, unsigned (&words)[4]) const;
//
// A value may be asked for more than once (rows that are reread, scales of four steps), and has to
// be the same each time.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/config/cast_config.h"
#include "kernels/config/cast_params.h"

namespace octofold::cast {

template <config::CastSource kSource, DType kIn, bool kVectors>
class Source;

}  // namespace octofold::cast
