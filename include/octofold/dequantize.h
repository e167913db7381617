// Conversion of FP8 codes and their scales back to numbers.
#pragma once

#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// out = code × scale, the product in FP32, rounded to nearest even in out's type.
/// x.data: [..., K], any row stride; of a stack [matrices, ..., K] the scales may be those of
/// CastTargets::matrices (cast_targets.h), which begin anew with each matrix; out: the same shape,
/// float32, float16 or bfloat16, columns contiguous, rows that do not overlap. Throws Error as
/// cast() does.
OCTOFOLD_API void dequantize(const ScaledTensorView& x, const MutableTensorView& out,
                             Stream stream = {});

}  // namespace octofold
