// Conversions on a GPU, with scales and without.
#pragma once

#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

#include "cuda/device.h"

namespace octofold::cuda {

/// octofold::dequantize() on checked arguments that lie on `device`.
void dequantize(Device& device, const ScaledTensorView& x, const MutableTensorView& out,
                Stream stream);

/// octofold::convert_dtype() on checked arguments of rank 2 that lie on `device`.
void convert_dtype(Device& device, const TensorView& x, const MutableTensorView& out,
                   Overflow overflow, Stream stream);

}  // namespace octofold::cuda
