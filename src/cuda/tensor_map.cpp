#include "cuda/tensor_map.h"

#include "core/check.h"
#include "plan/tma.h"

namespace octofold::cuda {
namespace {

// "CUDA Driver API", cuTensorMapEncodeTiled.
constexpr int kInterleaveNone = 0;
constexpr int kL2Promotion128Bytes = 2;  // of 256 short K loses up to 8 %
constexpr int kOutOfBoundsIsZero = 0;

int data_type(DType dtype) {
  switch (dtype) {
    case DType::kE4M3:
    case DType::kE5M2: return 0;  // CU_TENSOR_MAP_DATA_TYPE_UINT8: FP8 travels as bytes
    case DType::kInt32: return 4;
    case DType::kFloat16: return 6;
    case DType::kFloat32: return 7;
    case DType::kBFloat16: return 9;
  }
  return 0;
}

int swizzle(int bytes) {
  switch (bytes) {
    case 32: return 1;  // CU_TENSOR_MAP_SWIZZLE_32B
    case 64: return 2;
    case 128: return 3;
  }
  core::fail(ErrorCode::kInternal, "tensor map: expected boxes 32, 64 or 128 bytes wide, got {}",
             bytes);
}

}  // namespace

config::TensorMap encode_tensor_map(const Driver& driver, const TensorView& matrix, int box_rows,
                                    int box_columns) {
  const std::uint64_t sizes[] = {static_cast<std::uint64_t>(matrix.shape[1]),
                                 static_cast<std::uint64_t>(matrix.shape[0])};
  const std::uint64_t strides[] = {static_cast<std::uint64_t>(plan::tma_row_bytes(matrix))};
  const unsigned box[] = {static_cast<unsigned>(box_columns), static_cast<unsigned>(box_rows)};
  constexpr unsigned kDense[] = {1, 1};
  config::TensorMap map;
  const Result result = driver.tensor_map_encode_tiled(
      &map, data_type(matrix.dtype), 2, const_cast<void*>(matrix.data), sizes, strides, box, kDense,
      kInterleaveNone, swizzle(box_columns * size_of(matrix.dtype)), kL2Promotion128Bytes,
      kOutOfBoundsIsZero);
  if (result != kSuccess) [[unlikely]] {
    driver.fail(result, core::format("cuTensorMapEncodeTiled of a matrix {}×{} with rows of {} "
                                     "bytes, boxes {}×{}",
                                     sizes[1], sizes[0], strides[0], box_rows, box_columns));
  }
  return map;
}

}  // namespace octofold::cuda
