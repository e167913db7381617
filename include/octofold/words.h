// Views of numbers as packed 32-bit words, and of words as numbers, over the same memory.
#pragma once

#include "octofold/export.h"
#include "octofold/tensor.h"

namespace octofold {

// A word holds four numbers of FP8, or two of FP16, the first in its lowest bits, as they lie in
// memory. So a tensor of FP8 or FP16 is an array of words; convert_dtype() packs and unpacks.

/// The numbers of this type in a word; 0 for types that are not packed.
constexpr int numbers_per_word(DType format) {
  return format == DType::kFloat16 || is_fp8(format) ? 4 / size_of(format) : 0;
}

/// The int32 words [..., K / n] of a tensor [..., K] of e4m3, e5m2 or float16.
///
/// The last dimension is contiguous, K and all strides are multiples of n = numbers_per_word(), and
/// data is aligned to 4 bytes. Throws Error(kInvalidArgument), which says what is wrong.
OCTOFOLD_API TensorView as_words(const TensorView& numbers);
OCTOFOLD_API MutableTensorView as_words(const MutableTensorView& numbers);

/// The numbers [..., K · n] of words [..., K], in `format`: e4m3, e5m2 or float16. Words are int32,
/// or float32 with their bits; the last dimension is contiguous.
/// Throws Error(kInvalidArgument).
OCTOFOLD_API TensorView from_words(const TensorView& words, DType format);
OCTOFOLD_API MutableTensorView from_words(const MutableTensorView& words, DType format);

}  // namespace octofold
