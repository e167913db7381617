// Products whose weights alone are FP8 on a GPU.
#pragma once

#include <string_view>

#include "core/weight_only_product.h"
#include "cuda/device.h"

namespace octofold::cuda {

/// On checked arguments on `device`, with something to write. `called`: the public function.
void multiply(Device& device, std::string_view called, const core::WeightOnlyProduct& product,
              Stream stream);

}  // namespace octofold::cuda
