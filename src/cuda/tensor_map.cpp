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

// Sizes and boxes of so many dimensions, innermost first; strides, in bytes, of all but that.
struct Shape {
  unsigned rank;
  std::uint64_t sizes[3];
  std::uint64_t strides[2];
  unsigned box[3];
};

config::TensorMap encode(const Driver& driver, DType dtype, const void* address,
                         const Shape& shape) {
  constexpr unsigned kDense[] = {1, 1, 1};
  config::TensorMap map;
  const Result result = driver.tensor_map_encode_tiled(
      &map, data_type(dtype), shape.rank, const_cast<void*>(address), shape.sizes, shape.strides,
      shape.box, kDense, kInterleaveNone,
      swizzle(static_cast<int>(shape.box[0]) * static_cast<int>(size_of(dtype))),
      kL2Promotion128Bytes, kOutOfBoundsIsZero);
  if (result != kSuccess) [[unlikely]] {
    driver.fail(result, core::format("cuTensorMapEncodeTiled of a matrix {}×{} with rows of {} "
                                     "bytes, boxes {}×{}",
                                     shape.sizes[shape.rank - 1], shape.sizes[0], shape.strides[0],
                                     shape.box[1], shape.box[0]));
  }
  return map;
}

}  // namespace

config::TensorMap encode_tensor_map(const Driver& driver, const TensorView& matrix, int box_rows,
                                    int box_columns) {
  return encode(driver, matrix.dtype, matrix.data,
                {.rank = 2,
                 .sizes = {static_cast<std::uint64_t>(matrix.shape[1]),
                           static_cast<std::uint64_t>(matrix.shape[0])},
                 .strides = {static_cast<std::uint64_t>(plan::tma_row_bytes(matrix))},
                 .box = {static_cast<unsigned>(box_columns), static_cast<unsigned>(box_rows)}});
}

config::TensorMap encode_grouped_tensor_map(const Driver& driver, const TensorView& matrix,
                                            int box_rows, int box_columns) {
  const auto stride = static_cast<std::uint64_t>(plan::tma_row_bytes(matrix));
  const auto rows = static_cast<std::uint64_t>(box_rows);
  // A number and no pointer: it may lie before the allocation, of which nothing is read there.
  const std::uintptr_t before = reinterpret_cast<std::uintptr_t>(matrix.data) - rows * stride;
  return encode(driver, matrix.dtype, reinterpret_cast<const void*>(before),
                {.rank = 3,
                 .sizes = {static_cast<std::uint64_t>(matrix.shape[1]), rows,
                           static_cast<std::uint64_t>(matrix.shape[0]) + 1},
                 .strides = {stride, stride},
                 .box = {static_cast<unsigned>(box_columns), static_cast<unsigned>(box_rows), 1}});
}

}  // namespace octofold::cuda
