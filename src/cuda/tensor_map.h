// Tensor maps: how TMA finds its way in a matrix.
#pragma once

#include "octofold/tensor.h"

#include "cuda/driver.h"
#include "kernels/config/sm90_gemm.h"

namespace octofold::cuda {

/// Of a row-major matrix in device memory, moved in boxes of box_rows × box_columns elements: their
/// rows lie in shared memory under the swizzle of their width (32, 64 or 128 bytes). Elements
/// outside of the matrix are read as 0 and not written. Throws Error(kInternal) for what
/// plan::tma_obstacle() names.
config::TensorMap encode_tensor_map(const Driver& driver, const TensorView& matrix, int box_rows,
                                    int box_columns);

}  // namespace octofold::cuda
