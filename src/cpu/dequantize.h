// From codes and scales to numbers on the CPU.
#pragma once

#include "octofold/tensor.h"

namespace octofold::cpu {

/// octofold::dequantize on checked matrices.
void dequantize(const ScaledTensorView& x, const MutableTensorView& out);

}  // namespace octofold::cpu
