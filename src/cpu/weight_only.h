// Products whose weights alone are FP8 on the CPU.
#pragma once

#include "core/weight_only_product.h"

namespace octofold::cpu {

/// On checked arguments, with something to write. Products with 128 elements are summed in FP32;
/// their sums too, but in FP64 where x is float32 or FP8. Weights of gradients are rounded to FP32,
/// if at all.
void multiply(const core::WeightOnlyProduct& product);

}  // namespace octofold::cpu
