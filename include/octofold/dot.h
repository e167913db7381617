// The dot product of two vectors.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// Numbers as they are, or FP8 codes with scales.
struct DotOperand {
  /// float32, float16, bfloat16, e4m3 or e5m2.
  TensorView data;
  /// For e4m3 or e5m2, of the shape for its rows (vocabulary.h), of which a vector is one. Unset:
  /// the codes are the numbers.
  std::optional<TensorView> scale{};
  /// The codes that share a scale, if there is one.
  Granularity granularity = Granularity::kTensor;
};

struct DotArguments {
  /// [K], or with leading dimensions of 1; contiguous.
  DotOperand a;
  /// Has the length of a; its type and granularity may differ from a's.
  DotOperand b;
  /// One element, float32; written. It overlaps no other tensor.
  MutableTensorView out;
  /// float32 [dot_workspace_size(K)]. Its contents afterwards do not matter; the CPU backend does
  /// not use it.
  MutableTensorView workspace;
};

/// The number of elements of the workspace for vectors of `size` elements; at most 1024.
OCTOFOLD_API std::int64_t dot_workspace_size(std::int64_t size);

/// out = Σ a[i] · b[i]; 0 for empty vectors.
///
/// Codes become numbers exactly; products are added in FP32 and in a fixed order, which depends on
/// types, alignment and K alone. So the same input gives the same bits, on a GPU with any number of
/// multiprocessors. A scale for 128 elements multiplies their sum; a scale for all multiplies the
/// whole sum. (The CPU backend adds the sums of 128 in FP64 and rounds once.) NaN
/// and infinities follow IEEE rules. Throws Error: kInvalidArgument for wrong dtypes, shapes,
/// strides, devices or overlapping memory; on a GPU kUnsupported without kernels for it,
/// kUnavailable without a usable driver or compiler.
OCTOFOLD_API void dot(const DotArguments& arguments, Stream stream = {});

}  // namespace octofold
