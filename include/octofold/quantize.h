// Casts to and from FP8.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/export.h"
#include "octofold/scale_layout.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

namespace octofold {

struct QuantizeOptions {
  /// Whose scale rule and rounding to follow; docs/numerics.md lists them.
  CastProfile profile = CastProfile::kDeepGemm;
  /// Round scales to powers of two (UE8M0 values kept as FP32). Unset: the profile's own default.
  std::optional<bool> power_of_two{};
  Overflow overflow = Overflow::kSaturate;
  /// Quantize the transpose of x: the result is that of quantize(xᵀ), written row-major.
  bool transpose = false;
};

/// Casts x to FP8 with one FP32 scale per `out.granularity` unit and writes codes and scales.
///
/// x: [rows, cols] float32, float16 or bfloat16; columns contiguous, any row stride.
/// out.data: [rows, cols] ([cols, rows] with `transpose`) e4m3 or e5m2, columns contiguous.
/// out.scale: float32, shape by scale_shape() of out.data, any strides.
/// NaN and Inf follow IEEE rules through the arithmetic of the profile.
/// Throws Error(kInvalidArgument) for wrong dtypes, shapes, strides or overlapping memory.
OCTOFOLD_API void quantize(const TensorView& x, const MutableScaledTensorView& out,
                           const QuantizeOptions& options = {}, Stream stream = {});

/// Both casts of x, of itself and of its transpose, as training needs them: the same bytes as
/// quantize() gives without and with `transpose`, from one pass over x on a GPU.
///
/// x: as in quantize().
/// out.data: [rows, cols], out_transposed.data: [cols, rows]; dtype and granularity of both alike.
/// options.transpose has to be unset.
/// Throws as quantize() does.
OCTOFOLD_API void quantize_both(const TensorView& x, const MutableScaledTensorView& out,
                                const MutableScaledTensorView& out_transposed,
                                const QuantizeOptions& options = {}, Stream stream = {});

/// out = code × scale, the product in FP32, rounded to nearest even in out's type.
/// out: [rows, cols] float32, float16 or bfloat16, columns contiguous.
OCTOFOLD_API void dequantize(const ScaledTensorView& x, const MutableTensorView& out,
                             Stream stream = {});

/// Element-wise conversion between any two dtypes, without scales, rounding to nearest even.
/// `overflow` applies to FP8 results; float16 and bfloat16 overflow to infinity.
/// x, out: the same shape, rank 1 or 2, last dimension contiguous.
OCTOFOLD_API void convert(const TensorView& x, const MutableTensorView& out,
                          Overflow overflow = Overflow::kSaturate, Stream stream = {});

}  // namespace octofold
