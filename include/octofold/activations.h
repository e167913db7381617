// Activations and their gradients, cast to FP8 as they are worked out.
#pragma once

#include "octofold/casts.h"
#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/vocabulary.h"

namespace octofold {

/// Casts activation(x), which is nowhere in memory: quantize() of it, rounded to the dtype of x.
/// vocabulary.h has the activations; each is worked out in FP32 and rounded once.
///
/// x: [..., 2·K] of a gated activation, gate and up by `layout`; else [..., K]. float32, float16 or
///   bfloat16; columns contiguous, any row stride.
/// out: as in quantize(), of a matrix [..., K].
/// NaN and infinities follow IEEE rules; at -∞ SiLU and GELU are NaN.
/// Throws Error as quantize() does, and for a last dimension of a gated x that is odd.
OCTOFOLD_API void quantize_activation(const TensorView& x, Activation activation, GateLayout layout,
                                      const CastTargets& out, const QuantizeOptions& options = {},
                                      Stream stream = {});

/// The same of an x in FP8: of what dequantize() makes of it in `dtype`, which is float32, float16
/// or bfloat16, and gets the same bits.
///
/// x: of any granularity, without a channel_scale; columns of its codes contiguous, any row stride.
///   A scale belongs to columns of x as they lie, gate and up.
OCTOFOLD_API void quantize_activation(const ScaledTensorView& x, DType dtype, Activation activation,
                                      GateLayout layout, const CastTargets& out,
                                      const QuantizeOptions& options = {}, Stream stream = {});

/// Casts the gradient by x, from `gradient`, that by activation(x): what the backward pass of the
/// linear layer before the activation multiplies with.
///
/// gradient: [..., K], of the dtype of x; columns contiguous, any row stride.
/// x: as in quantize_activation().
/// out: as in quantize(), of a matrix of the shape of x, with its layout of gate and up.
OCTOFOLD_API void quantize_activation_gradient(const TensorView& gradient, const TensorView& x,
                                               Activation activation, GateLayout layout,
                                               const CastTargets& out,
                                               const QuantizeOptions& options = {},
                                               Stream stream = {});

/// The same of an x in FP8: of what dequantize() makes of it in the dtype of the gradient, float32,
/// float16 or bfloat16.
OCTOFOLD_API void quantize_activation_gradient(const TensorView& gradient,
                                               const ScaledTensorView& x, Activation activation,
                                               GateLayout layout, const CastTargets& out,
                                               const QuantizeOptions& options = {},
                                               Stream stream = {});

}  // namespace octofold
