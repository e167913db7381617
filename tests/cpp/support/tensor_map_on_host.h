// The contents of a CUtensorMap, for the copy engine of ptx_on_host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "kernels/shared/stages.h"

namespace octofold::test {

// 16 bytes of a tensor, or as many of them as it has.
struct TensorUnit {
  unsigned char* data;
  std::size_t bytes;
};

// A matrix by boxes, or several behind one another. Boxes are as wide as their swizzle.
struct TensorMapOnHost {
  unsigned char* data;
  unsigned element_bytes;
  std::int64_t columns, rows, matrices;
  std::int64_t row_bytes, matrix_bytes;  // from one to the next
  unsigned box_columns, box_rows;

  TensorUnit find(std::int64_t x, std::int64_t y, std::int64_t z) const {
    if (x < 0 || y < 0 || z < 0 || x >= columns || y >= rows || z >= matrices) return {nullptr, 0};
    const std::int64_t there = (columns - x) * element_bytes;
    return {data + z * matrix_bytes + y * row_bytes + x * element_bytes,
            static_cast<std::size_t>(std::min<std::int64_t>(there, 16))};
  }
};
static_assert(sizeof(TensorMapOnHost) <= sizeof(config::TensorMap));

inline config::TensorMap tensor_map(const TensorMapOnHost& tensor) {
  // "CUDA Driver API", cuTensorMapEncodeTiled: what it refuses.
  const unsigned box_bytes = tensor.box_columns * tensor.element_bytes;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0 || tensor.row_bytes % 16 != 0 ||
      tensor.matrix_bytes % 16 != 0 || tensor.box_rows > 256 ||
      (box_bytes != 32 && box_bytes != 64 && box_bytes != 128)) {
    throw std::invalid_argument("cuTensorMapEncodeTiled would not take this tensor");
  }
  config::TensorMap map{};
  std::memcpy(map.opaque, &tensor, sizeof(tensor));
  return map;
}
inline TensorMapOnHost tensor_map_at(const void* map) {
  TensorMapOnHost tensor;
  std::memcpy(&tensor, map, sizeof(tensor));
  return tensor;
}

}  // namespace octofold::test
