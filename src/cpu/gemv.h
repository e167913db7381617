// Products of an FP8 matrix and a few vectors on the CPU.
#pragma once

#include "octofold/gemv.h"

namespace octofold::cpu {

/// octofold::gemv on checked arguments, all matrices. Products with 128 elements are summed in
/// FP32, their sums in FP64.
void gemv(const GemvArguments& arguments);

}  // namespace octofold::cpu
