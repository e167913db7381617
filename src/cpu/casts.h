// Scaled casts on the CPU, on checked matrices.
#pragma once

#include "octofold/casts.h"

#include "kernels/cast/config/cast.h"

namespace octofold::cpu {

/// Casts x [rows, cols], of any strides, to out.data [rows, cols] with the scales that it finds in
/// out.scale (kGiven), or works out and writes there. With out.channel_scale it casts the FP32
/// products of x and the factors' reciprocals.
void quantize(const TensorView& x, const MutableScaledTensorView& out, config::CastFormat format,
              ScaleSource scales);

/// The same for each target that there is: of x, and of its transpose; and what is wanted of its
/// columns. Offsets begin at 0, ascend, and end within x. Of a stack, for each of its matrices.
void quantize(const TensorView& x, const CastTargets& out, const config::CastFormat& format,
              ScaleSource scales);

/// octofold::dequantize.
void dequantize(const ScaledTensorView& x, const MutableTensorView& out);

}  // namespace octofold::cpu
