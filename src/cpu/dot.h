// The dot product on the CPU.
#pragma once

#include "octofold/dot.h"

namespace octofold::cpu {

/// octofold::dot on checked arguments, whose vectors are matrices of one row. Blocks of 128
/// elements are summed in FP32, their sums in FP64.
void dot(const DotArguments& arguments);

}  // namespace octofold::cpu
