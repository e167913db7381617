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
  /// [K], or with leading dimensions of 1: float32, float16, bfloat16, e4m3 or e5m2; contiguous.
  TensorView data;
  /// Of e4m3 or e5m2: as cast_targets.h has it for one row. None: the codes are the numbers.
  std::optional<TensorView> scale{};
  /// With a scale: what shares one.
  Granularity granularity = Granularity::kTensor;
};

struct DotArguments {
  DotOperand a;
  /// Of the length of a; of any other type and granularity.
  DotOperand b;
  /// One element, float32; written. Apart from all else.
  MutableTensorView out;
  /// float32 [dot_workspace_size(K)]. What it holds afterwards is of no account; the CPU backend
  /// does not look at it.
  MutableTensorView workspace;
};

/// Elements of the workspace for vectors of so many elements: at most 1024.
OCTOFOLD_API std::int64_t dot_workspace_size(std::int64_t size);

/// out = Σ a[i] · b[i], 0 of nothing.
///
/// Codes become numbers exactly; products are added in FP32 and in a fixed order, which depends on
/// types, alignment and K alone: the same input gives the same bits, on a GPU with any number of
/// multiprocessors. Scales for 128 elements multiply the sums of these; what all elements share
/// multiplies the whole sum. (The CPU backend adds the sums of 128 in FP64 and rounds once.) NaN
/// and infinities follow IEEE rules. Throws Error: kInvalidArgument for wrong dtypes, shapes,
/// strides, devices or overlapping memory; on a GPU kUnsupported without kernels for it,
/// kUnavailable without a usable driver or compiler.
OCTOFOLD_API void dot(const DotArguments& arguments, Stream stream = {});

}  // namespace octofold
