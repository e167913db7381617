// Casts and conversions on a GPU.
#pragma once

#include "octofold/quantize.h"

#include "cuda/device.h"
#include "kernels/config/cast_rule.h"

namespace octofold::cuda {

/// On checked arguments that lie on `device`: the cast of x to `out`, that of its transpose to
/// `out_transposed`, or both from one read of x; null: not wanted. Queues one kernel, or four where
/// a scale is not known before all of x is read; the first call of a problem also plans it and
/// loads its kernels.
void quantize(Device& device, const TensorView& x, const MutableScaledTensorView* out,
              const MutableScaledTensorView* out_transposed, const config::CastRule& rule,
              bool power_of_two, Overflow overflow, Stream stream);

/// octofold::dequantize() on checked arguments that lie on `device`.
void dequantize(Device& device, const ScaledTensorView& x, const MutableTensorView& out,
                Stream stream);

/// octofold::convert() on checked arguments of rank 2 that lie on `device`.
void convert(Device& device, const TensorView& x, const MutableTensorView& out, Overflow overflow,
             Stream stream);

}  // namespace octofold::cuda
