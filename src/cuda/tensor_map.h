// Tensor maps: how TMA finds its way in a matrix.
#pragma once

#include "octofold/tensor.h"

#include "cuda/driver.h"
#include "kernels/sm90/config/checks.h"

namespace octofold::cuda {

/// Encodes a row-major matrix on a device, moved in boxes of box_rows × box_columns elements: their
/// rows lie in shared memory under the swizzle of their width (32, 64 or 128 bytes). Elements
/// outside of the matrix are read as 0 and not written. Throws Error(kInternal) for what
/// plan::tma_obstacle() names.
config::TensorMap encode_tensor_map(const Driver& driver, const TensorView& matrix, int box_rows,
                                    int box_columns);

/// The same of a matrix whose rows are stored in groups: rows have two dimensions, both of the
/// matrix's row stride. Row r of box row b is that of coordinates (b, r): box_rows before the
/// matrix's first, so that coordinates (box_rows - e, r + e) address row r, and of the box that
/// begins there just e rows lie inside.
config::TensorMap encode_grouped_tensor_map(const Driver& driver, const TensorView& matrix,
                                            int box_rows, int box_columns);

}  // namespace octofold::cuda
