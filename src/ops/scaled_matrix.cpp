#include "octofold/scaled_matrix.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "core/check.h"
#include "core/scale_layout.h"
#include "cuda/backend.h"
#include "ops/backend.h"

namespace octofold {
namespace {

constexpr std::string_view kOperation = "ScaledMatrix";

void copy(void* to, Device to_device, const void* from, Device from_device, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (size == 0) return;
  if (ops::is_on_cpu(to_device) && ops::is_on_cpu(from_device)) {
    std::memcpy(to, from, size);
    return;
  }
  const Device gpu = ops::is_on_cpu(to_device) ? from_device : to_device;
  cuda::copy(ops::gpu(kOperation, gpu), to, from, size);
}

// Scales of one layout in another. Both of a scale tensor of rank 2.
std::vector<float> rearranged(const std::vector<float>& scales, const ScaleLayout& from,
                              const ScaleLayout& to) {
  std::vector<float> result(static_cast<std::size_t>(to.extent()));
  for (std::int64_t row = 0; row < from.shape[0]; ++row) {
    for (std::int64_t col = 0; col < from.shape[1]; ++col) {
      result[static_cast<std::size_t>(row * to.strides[0] + col * to.strides[1])] =
          scales[static_cast<std::size_t>(row * from.strides[0] + col * from.strides[1])];
    }
  }
  return result;
}

// Rows of codes with other gaps between them.
std::vector<std::byte> rearranged(const std::vector<std::byte>& codes, std::int64_t cols,
                                  std::int64_t from, std::int64_t to) {
  const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  const std::size_t rows = codes.size() / size(from);
  std::vector<std::byte> result(rows * size(to));
  for (std::size_t row = 0; row < rows; ++row) {
    std::copy_n(codes.data() + row * size(from), size(cols), result.data() + row * size(to));
  }
  return result;
}

template <typename T>
std::span<T> elements(void* memory, std::int64_t count) {
  return {static_cast<T*>(memory), static_cast<std::size_t>(count)};
}

}  // namespace

ScaledMatrix::ScaledMatrix(std::int64_t rows, std::int64_t cols, const Format& format,
                           Device device)
    : rows_(rows),
      cols_(cols),
      format_(format),
      device_(device),
      layout_(scale_layout(format.granularity, rows, cols, device.type)),
      row_stride_(core::code_row_stride(cols, device.type)) {
  if (!is_fp8(format.dtype)) {
    core::fail_argument(kOperation, "format.dtype", "e4m3 or e5m2", name(format.dtype));
  }
  codes_ = allocate(rows * row_stride_, device);
  scales_ = allocate(layout_.extent() * size_of(DType::kFloat32), device);
}

ScaledMatrix::Memory ScaledMatrix::allocate(std::int64_t bytes, Device device) {
  if (bytes == 0) return {nullptr, {device}};
  const auto size = static_cast<std::size_t>(bytes);
  if (!ops::is_on_cpu(device)) {
    return {cuda::allocate(ops::gpu(kOperation, device), size), {device}};
  }
  void* const memory = std::calloc(size, 1);
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, {device}};
}

void ScaledMatrix::Release::operator()(void* memory) const noexcept {
  if (ops::is_on_cpu(device)) return std::free(memory);
  try {
    cuda::release(ops::gpu(kOperation, device), memory);
  } catch (const Error&) {  // a forked process: the memory is its parent's
  }
}

CastTarget ScaledMatrix::target() {
  return {matrix(codes_.get(), format_.dtype, rows_, cols_, row_stride_, device_),
          layout_.view(scales_.get(), device_), format_};
}

ScaledTensorView ScaledMatrix::view() const {
  return {matrix<const void>(codes_.get(), format_.dtype, rows_, cols_, row_stride_, device_),
          layout_.view<const void>(scales_.get(), device_), format_.granularity};
}

ScaledMatrix ScaledMatrix::to(Device device) const {
  const std::int64_t extent = layout_.extent();
  ScaledMatrix result(rows_, cols_, format_, device);
  const std::int64_t bytes = rows_ * row_stride_;
  if (row_stride_ == result.row_stride_) {
    copy(result.codes_.get(), device, codes_.get(), device_, bytes);
  } else if (bytes > 0) {
    std::vector<std::byte> codes(static_cast<std::size_t>(bytes));
    copy(codes.data(), {}, codes_.get(), device_, bytes);
    codes = rearranged(codes, cols_, row_stride_, result.row_stride_);
    copy(result.codes_.get(), device, codes.data(), {}, rows_ * result.row_stride_);
  }
  const std::int64_t result_extent = result.layout_.extent();
  constexpr std::int64_t kBytes = size_of(DType::kFloat32);
  if (layout_.strides == result.layout_.strides) {
    copy(result.scales_.get(), device, scales_.get(), device_, extent * kBytes);
    return result;
  }
  std::vector<float> scales(static_cast<std::size_t>(extent));
  copy(scales.data(), {}, scales_.get(), device_, extent * kBytes);
  scales = rearranged(scales, layout_, result.layout_);
  copy(result.scales_.get(), device, scales.data(), {}, result_extent * kBytes);
  return result;
}

void ScaledMatrix::require_host() const {
  layout_.extent();  // throws where there is no memory
  if (ops::is_on_cpu(device_)) return;
  core::fail(ErrorCode::kInvalidArgument,
             "{}: codes and scales are on cuda:{}, where the host cannot read them: copy them to "
             "the host by to()",
             kOperation, device_.index);
}

std::span<std::uint8_t> ScaledMatrix::codes() {
  require_host();
  return elements<std::uint8_t>(codes_.get(), rows_ * cols_);
}

std::span<const std::uint8_t> ScaledMatrix::codes() const {
  require_host();
  return elements<const std::uint8_t>(codes_.get(), rows_ * cols_);
}

std::span<float> ScaledMatrix::scales() {
  require_host();
  return elements<float>(scales_.get(), layout_.extent());
}

std::span<const float> ScaledMatrix::scales() const {
  require_host();
  return elements<const float>(scales_.get(), layout_.extent());
}

}  // namespace octofold
