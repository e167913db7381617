// Scaled casts on the CPU, on checked arguments.
#pragma once

#include "octofold/tensor.h"

#include "kernels/config/cast_rule.h"

namespace octofold::cpu {

/// Casts x [rows, cols], of any strides, to out.data [rows, cols] and out.scale.
void quantize(const TensorView& x, const MutableScaledTensorView& out, const config::CastRule& rule,
              bool power_of_two, Overflow overflow);

/// octofold::dequantize.
void dequantize(const ScaledTensorView& x, const MutableTensorView& out);

}  // namespace octofold::cpu
