// The reference of all FP8 products on the CPU.
#pragma once

#include "core/product.h"

namespace octofold::cpu {

/// octofold::gemm(), grouped_gemm() and gated_gemm() on checked arguments: one product of matrices
/// for each group. It knows no candidates.
void multiply(const core::Product& product);

}  // namespace octofold::cpu
