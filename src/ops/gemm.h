// What gemm() takes.
#pragma once

#include "octofold/gemm.h"

namespace octofold::ops {

/// Throws Error(kInvalidArgument) that names the argument. Looks at no memory.
void check(const GemmArguments& arguments);

}  // namespace octofold::ops
