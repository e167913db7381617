// Products of an FP8 matrix and a few vectors, for GPUs with and without FP8 units.
#pragma once

#include <cstdint>

#include "octofold/dot.h"
#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// The most vectors that gemv() takes.
inline constexpr std::int64_t kMostGemvRows = 16;

/// out[..., N] = x[..., K] · W[N, K]ᵀ.
struct GemvArguments {
  /// e4m3 or e5m2, any granularity; columns (K) contiguous, any row stride.
  ScaledTensorView w;
  /// One to kMostGemvRows vectors, leading dimensions counted together: float32, float16, bfloat16,
  /// e4m3 or e5m2, of FP8 with scales of any granularity or without; columns contiguous, any row
  /// stride.
  DotOperand x;
  /// float32, float16 or bfloat16; columns contiguous, rows apart from each other. Apart from all
  /// else.
  MutableTensorView out;
};

/// N, K ≥ 0; with K = 0 the sum is 0. No vectors: nothing is done.
///
/// Codes become numbers exactly. Products are added in FP32 and in a fixed order: the same input
/// gives the same bits. Scales that vary along K multiply the sums of their 128 values, those that
/// do not the whole sum; one rounding to out's type. (The CPU backend adds the sums of 128 in
/// FP64.) Throws Error as dot() does.
OCTOFOLD_API void gemv(const GemvArguments& arguments, Stream stream = {});

}  // namespace octofold
