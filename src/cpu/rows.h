// Rows of matrices in FP32, and back.
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include "cpu/convert.h"

namespace octofold::cpu {

using Row = std::vector<float>;

/// Row `row` of a matrix, or a vector, as far as there is room for it in `values`.
inline void read_row(const TensorView& tensor, std::int64_t row, Row& values) {
  const std::int64_t offset = tensor.rank == 2 ? row * tensor.strides[0] : 0;
  load(tensor.data, tensor.dtype, offset, 1, std::ssize(values), values.data());
}

inline void write_row(const Row& values, const MutableTensorView& matrix, std::int64_t row) {
  store(values.data(), std::ssize(values), matrix.data, matrix.dtype, row * matrix.strides[0],
        Overflow::kSaturate);
}

}  // namespace octofold::cpu
