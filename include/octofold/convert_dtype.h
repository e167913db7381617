// Conversion from one element type to another, element by element.
#pragma once

#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

namespace octofold {

/// Element-wise conversion between any two of float32, float16, bfloat16, e4m3 and e5m2, without
/// scales, rounding to nearest even.
/// `overflow` applies to FP8 results; float16 and bfloat16 overflow to infinity.
/// x and out have the same shape [..., K] and a contiguous last dimension; x has any row stride,
/// out has rows that do not overlap. Throws Error as cast() does (cast.h).
OCTOFOLD_API void convert_dtype(const TensorView& x, const MutableTensorView& out,
                                Overflow overflow = Overflow::kSaturate, Stream stream = {});

}  // namespace octofold
