// The transpose of FP8 codes.
#pragma once

#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// out[..., j, i] = x[..., i, j]: the transpose of a matrix, or of each matrix of a stack. Bits
/// stay as they are.
/// x is e4m3 or e5m2 [..., rows, cols], of any row stride; out is of the same type, [..., cols,
/// rows]. Both have a contiguous last dimension and leading ones that one stride can walk; rows of
/// out do not overlap. Throws Error as cast() does (cast.h).
OCTOFOLD_API void transpose(const TensorView& x, const MutableTensorView& out, Stream stream = {});

}  // namespace octofold
