// The transpose of FP8 codes.
#pragma once

#include <cstdint>

#include "octofold/tensor.h"

namespace octofold::cpu {

/// octofold::transpose on checked arguments: of so many matrices, one below another in x and in
/// out, both of rank 2.
void transpose(const TensorView& x, const MutableTensorView& out, std::int64_t matrices);

}  // namespace octofold::cpu
