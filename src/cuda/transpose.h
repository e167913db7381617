// The transpose of FP8 codes on a GPU.
#pragma once

#include <cstdint>

#include "octofold/stream.h"
#include "octofold/tensor.h"

#include "cuda/device.h"

namespace octofold::cuda {

/// octofold::transpose on checked arguments on `device`: of so many matrices, one below another in
/// x and in out, both of rank 2.
void transpose(Device& device, const TensorView& x, const MutableTensorView& out,
               std::int64_t matrices, Stream stream);

}  // namespace octofold::cuda
