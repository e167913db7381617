// Which backend an operation runs on.
#pragma once

#include <string_view>

#include "octofold/tensor.h"

namespace octofold::ops {

/// Throws Error(kUnavailable) that says why, where no backend serves tensors on `device`.
void require_backend(std::string_view operation, Device device);

}  // namespace octofold::ops
