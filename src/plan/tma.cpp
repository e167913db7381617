#include "plan/tma.h"

namespace octofold::plan {
namespace {

// True if the rows begin and end at multiples of so many bytes.
bool has_units(const TensorView& matrix, std::int64_t bytes) {
  const std::int64_t size = size_of(matrix.dtype);
  return reinterpret_cast<std::uintptr_t>(matrix.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
         matrix.shape[1] * size % bytes == 0 &&
         (matrix.shape[0] <= 1 || matrix.strides[0] * size % bytes == 0);
}

}  // namespace

std::int64_t tma_row_bytes(const TensorView& matrix) {
  const std::int64_t size = size_of(matrix.dtype);
  if (matrix.shape[0] > 1) return matrix.strides[0] * size;
  return (matrix.shape[1] * size + kTmaAlignment - 1) / kTmaAlignment * kTmaAlignment;
}

const char* tma_obstacle(const TensorView& matrix) {
  constexpr std::int64_t kLargestStride = std::int64_t{1} << 40;
  if (matrix.shape[0] == 0 || matrix.shape[1] == 0) return "it has no elements";
  if (reinterpret_cast<std::uintptr_t>(matrix.data) % kTmaAlignment != 0) {
    return "its address is not a multiple of 16 bytes";
  }
  const std::int64_t stride = tma_row_bytes(matrix);
  if (stride % kTmaAlignment != 0) return "its row stride is not a multiple of 16 bytes";
  if (stride >= kLargestStride) return "its row stride is 2^40 bytes or more";
  if (stride < matrix.shape[1] * size_of(matrix.dtype)) return "its rows overlap or run backwards";
  return nullptr;
}

const char* tma_store_obstacle(const TensorView& matrix) {
  if (matrix.shape[1] * size_of(matrix.dtype) % kTmaAlignment != 0) {
    return "its rows are not multiples of 16 bytes long";
  }
  return tma_obstacle(matrix);
}

bool has_words(const TensorView& matrix) { return has_units(matrix, 4); }

bool has_vectors(const TensorView& matrix) { return has_units(matrix, 16); }

}  // namespace octofold::plan
