// The matrices that TMA, the copy engine for tensors, can address.
#pragma once

#include <cstdint>

#include "octofold/tensor.h"

namespace octofold::plan {

/// Addresses and row strides have to be multiples of it, in bytes. "CUDA Driver API",
/// cuTensorMapEncodeTiled.
inline constexpr std::int64_t kTmaAlignment = 16;

/// Bytes from one row of a matrix to the next. The stride of a single row leads nowhere, and
/// callers put anything there.
std::int64_t tma_row_bytes(const TensorView& matrix);

/// Why TMA cannot address the matrix, for a message, or null: address and row stride have to be
/// multiples of 16 bytes, rows may not overlap, and there has to be an element.
const char* tma_obstacle(const TensorView& matrix);

/// The same for a matrix that TMA is to write. It does so in units of 16 bytes (seen on an H200; no
/// manual says so): what lies behind rows that end within one would be overwritten.
const char* tma_store_obstacle(const TensorView& matrix);

/// True if the rows of a matrix of bytes consist of words: begin at multiples of 4, and end there.
bool has_words(const TensorView& matrix);

/// True if the rows of a matrix consist of vectors: begin at multiples of 16 bytes, and end there.
bool has_vectors(const TensorView& matrix);

/// True if each row begins at a multiple of `bytes`; a vector is one row.
template <typename View>
bool is_aligned(const View& matrix, std::int64_t bytes) {
  const bool stride_fits = matrix.rank < 2 || matrix.shape[0] <= 1 ||
                           matrix.strides[0] * size_of(matrix.dtype) % bytes == 0;
  return stride_fits &&
         reinterpret_cast<std::uintptr_t>(matrix.data) % static_cast<std::uintptr_t>(bytes) == 0;
}

}  // namespace octofold::plan
