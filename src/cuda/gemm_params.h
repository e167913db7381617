// The parameters of all architectures' product kernels, and what is said of slow operands.
#pragma once

#include "core/product.h"
#include "kernels/shared/gemm_params.h"

namespace octofold::cuda {

/// An A that is cast is what it is cast from, without scales. Of a gated product B has the rows of
/// gates and ups, and `out` are the codes. `swapped`: the instruction's rows are B's.
config::GemmParams gemm_params(const core::Product& product, bool swapped);

/// The cost where TMA cannot address a matrix, as text for the log; null: nothing.
struct SlowPaths {
  const char* operands = nullptr;
  const char* out = nullptr;
};

}  // namespace octofold::cuda
