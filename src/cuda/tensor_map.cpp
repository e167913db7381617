#include "cuda/tensor_map.h"

#include "core/check.h"

namespace octofold::cuda {
namespace {

// "CUDA Driver API", cuTensorMapEncodeTiled.
constexpr std::int64_t kAlignment = 16;
constexpr int kInterleaveNone = 0;
constexpr int kL2Promotion256Bytes = 3;
constexpr int kOutOfBoundsIsZero = 0;

int data_type(config::Element element) {
  switch (element) {
    case config::Element::kE4M3:
    case config::Element::kE5M2: return 0;  // CU_TENSOR_MAP_DATA_TYPE_UINT8
    case config::Element::kFloat16: return 6;
    case config::Element::kFloat32: return 7;
    case config::Element::kBFloat16: return 9;
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

// The stride of a single row leads nowhere, and callers put anything there.
std::int64_t row_bytes(config::Element element, std::int64_t rows, std::int64_t cols,
                       std::int64_t row_stride) {
  const std::int64_t size = config::size_of(element);
  if (rows > 1) return row_stride * size;
  return (cols * size + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

const char* tma_obstacle(const void* data, config::Element element, std::int64_t rows,
                         std::int64_t cols, std::int64_t row_stride) {
  constexpr std::int64_t kLargestStride = std::int64_t{1} << 40;
  if (rows == 0 || cols == 0) return "it has no elements";
  if (reinterpret_cast<std::uintptr_t>(data) % kAlignment != 0) {
    return "its address is not a multiple of 16 bytes";
  }
  const std::int64_t stride = row_bytes(element, rows, cols, row_stride);
  if (stride % kAlignment != 0) return "its row stride is not a multiple of 16 bytes";
  if (stride >= kLargestStride) return "its row stride is 2^40 bytes or more";
  return nullptr;
}

const char* tma_store_obstacle(const void* data, config::Element element, std::int64_t rows,
                               std::int64_t cols, std::int64_t row_stride) {
  if (cols * config::size_of(element) % kAlignment != 0) {
    return "its rows are not multiples of 16 bytes long";
  }
  return tma_obstacle(data, element, rows, cols, row_stride);
}

config::TensorMap encode_tensor_map(const Driver& driver, const TensorMapSource& source) {
  const std::uint64_t sizes[] = {static_cast<std::uint64_t>(source.cols),
                                 static_cast<std::uint64_t>(source.rows)};
  const std::uint64_t strides[] = {static_cast<std::uint64_t>(
      row_bytes(source.element, source.rows, source.cols, source.row_stride))};
  const unsigned box[] = {static_cast<unsigned>(source.box_cols),
                          static_cast<unsigned>(source.box_rows)};
  constexpr unsigned kDense[] = {1, 1};
  config::TensorMap map;
  const Result result = driver.tensor_map_encode_tiled(
      &map, data_type(source.element), 2, const_cast<void*>(source.data), sizes, strides, box,
      kDense, kInterleaveNone, swizzle(source.box_cols * config::size_of(source.element)),
      kL2Promotion256Bytes, kOutOfBoundsIsZero);
  if (result != kSuccess) [[unlikely]] {
    driver.fail(result, core::format("cuTensorMapEncodeTiled of a matrix {}×{} with rows of {} "
                                     "bytes, boxes {}×{}",
                                     source.rows, source.cols, strides[0], source.box_rows,
                                     source.box_cols));
  }
  return map;
}

}  // namespace octofold::cuda
