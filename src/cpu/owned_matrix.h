// A row-major matrix with memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "octofold/tensor.h"

namespace octofold::cpu {

struct OwnedMatrix {
  std::vector<std::byte> memory;  ///< empty where the view is of another's
  TensorView view;

  static OwnedMatrix make(std::int64_t rows, std::int64_t cols, DType dtype) {
    OwnedMatrix result;
    result.memory.resize(static_cast<std::size_t>(rows * cols * size_of(dtype)));
    result.view = matrix(static_cast<const void*>(result.memory.data()), dtype, rows, cols);
    return result;
  }
  MutableTensorView writable() {
    return matrix(static_cast<void*>(memory.data()), view.dtype, view.shape[0], view.shape[1]);
  }
};

}  // namespace octofold::cpu
