// Contiguous tensors of any shape.
#pragma once

#include <cstdint>
#include <vector>

#include "octofold/tensor.h"

namespace octofold::test {

/// The same memory as a contiguous tensor of this shape.
template <typename View>
View shaped(View view, const std::vector<std::int64_t>& shape) {
  view.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
    view.shape[i] = shape[i];
    view.strides[i] = stride;
  }
  return view;
}

template <typename T>
auto tensor(T* data, DType dtype, const std::vector<std::int64_t>& shape, Device device = {}) {
  return shaped(vector(data, dtype, 0, device), shape);
}

}  // namespace octofold::test
