#include "core/check.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "octofold/scale_layout.h"

#include "core/scale_layout.h"

namespace octofold::core {
namespace {

// Half-open range of element indices that a view touches, counted from its data pointer.
struct Extent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

Extent extent_of(const TensorView& tensor) {
  Extent extent{0, 1};
  for (std::int32_t i = 0; i < tensor.rank; ++i) {
    const std::int64_t reach = (tensor.shape[i] - 1) * tensor.strides[i];
    (reach < 0 ? extent.begin : extent.end) += reach;
  }
  return extent;
}

bool is_row_strided(const TensorView& tensor) {
  return tensor.rank == 2 && (tensor.shape[1] == 1 || tensor.strides[1] == 1);
}

// The same memory with a row stride of at least 0; rows that are all the same are one.
TensorView in_order(TensorView matrix) {
  if (matrix.strides[0] == 0) matrix.shape[0] = 1;
  if (matrix.strides[0] < 0) {
    matrix.data = static_cast<const char*>(matrix.data) +
                  (matrix.shape[0] - 1) * matrix.strides[0] * size_of(matrix.dtype);
    matrix.strides[0] = -matrix.strides[0];
  }
  return matrix;
}

// Columns of two row-strided matrices over the same rows: do their byte columns meet?
bool columns_overlap(const TensorView& left, const TensorView& right, std::int64_t stride_bytes) {
  const auto address = [](const TensorView& t) { return reinterpret_cast<std::intptr_t>(t.data); };
  const std::int64_t left_width = left.shape[1] * size_of(left.dtype);
  const std::int64_t right_width = right.shape[1] * size_of(right.dtype);
  const std::int64_t shift =
      ((address(right) - address(left)) % stride_bytes + stride_bytes) % stride_bytes;
  return shift < left_width || shift + right_width > stride_bytes;
}

template <typename Enum>
void require_up_to(const Arguments& check, std::string_view argument, std::string_view kind,
                   Enum value, Enum last) {
  const auto number = static_cast<std::int64_t>(value);
  if (number >= 0 && number <= static_cast<std::int64_t>(last)) return;
  check.fail(argument,
             core::format("an enumerator of {}, 0 to {}", kind, static_cast<std::int64_t>(last)),
             core::format("{}", number));
}

bool sizes_are_negative(const TensorView& tensor) {
  return std::any_of(tensor.shape.begin(), tensor.shape.begin() + tensor.rank,
                     [](std::int64_t size) { return size < 0; });
}

// Sizes and strides that memory can hold, checked without risk of integer overflow.
bool sizes_are_sane(const TensorView& tensor) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 57;  // bytes of all dimensions fit too
  if (tensor.rank < 0 || tensor.rank > kMaxRank) return false;
  std::int64_t elements = 1;
  for (std::int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] < 0) return false;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(tensor.shape[i], tensor.strides[i], &reach) || reach > kLargest ||
        reach < -kLargest) {
      return false;
    }
    if (tensor.shape[i] != 0 && __builtin_mul_overflow(elements, tensor.shape[i], &elements)) {
      return false;
    }
  }
  return elements <= kLargest;
}

std::string describe_device(Device device) {
  if (device == Device{}) return "cpu";
  if (device.type == DeviceType::kNone) return "no device";
  return core::format("{}:{}", device.type == DeviceType::kCpu ? "cpu" : "cuda", device.index);
}

}  // namespace

void fail_argument(std::string_view operation, std::string_view argument, std::string_view expected,
                   std::string_view got) {
  fail(ErrorCode::kInvalidArgument, "{}: argument '{}': expected {}, got {}", operation, argument,
       expected, got);
}

std::string describe(const TensorView& tensor) {
  const auto rank = static_cast<std::size_t>(std::clamp(tensor.rank, 0, kMaxRank));
  return core::format("{} {} with strides {}", name(tensor.dtype),
                      std::span(tensor.shape.data(), rank), std::span(tensor.strides.data(), rank));
}

void Arguments::require_enumerator(std::string_view argument, DType dtype) const {
  require_up_to(*this, argument, "DType", dtype, DType::kInt32);
}

void Arguments::require_enumerator(std::string_view argument, Granularity granularity) const {
  require_up_to(*this, argument, "Granularity", granularity,
                std::rbegin(kGranularityTable)->granularity);
}

void Arguments::require_enumerator(std::string_view argument, Overflow overflow) const {
  require_up_to(*this, argument, "Overflow", overflow, Overflow::kNan);
}

void Arguments::require_enumerator(std::string_view argument, Activation activation) const {
  require_up_to(*this, argument, "Activation", activation, Activation::kReluSquared);
}

void Arguments::require_enumerator(std::string_view argument, GateLayout layout) const {
  require_up_to(*this, argument, "GateLayout", layout, GateLayout::kInterleaved);
}

void Arguments::require_enumerator(std::string_view argument, DeviceType type) const {
  require_up_to(*this, argument, "DeviceType", type, DeviceType::kNone);
}

void Arguments::require_size(std::string_view argument, std::int64_t size, std::int64_t least,
                             int bits) const {
  if (size >= least && size <= std::int64_t{1} << bits) return;
  fail(argument, core::format("{} to 2^{}", least, bits), core::format("{}", size));
}

void Arguments::require_rank(std::string_view argument, const TensorView& tensor, std::int32_t rank,
                             std::string_view expected) const {
  require_sizes(argument, tensor);
  if (tensor.rank != rank) {
    fail(argument, expected, core::format("{} dimensions", tensor.rank));
  }
}

void Arguments::require_sizes(std::string_view argument, const TensorView& tensor) const {
  require_enumerator(argument, tensor.dtype);
  require_enumerator(argument, tensor.device.type);
  if (tensor.rank < 0 || tensor.rank > kMaxRank) {
    fail(argument, core::format("0 to {} dimensions", kMaxRank), core::format("{}", tensor.rank));
  }
  if (sizes_are_negative(tensor)) fail(argument, "sizes of at least 0", describe(tensor));
  if (!sizes_are_sane(tensor)) fail(argument, "sizes that memory can hold", describe(tensor));
}

void Arguments::require_input_matrix(std::string_view argument, const TensorView& tensor) const {
  require_rank(argument, tensor, 2, "a matrix (2 dimensions)");
  if (tensor.element_count() == 0) return;
  if (tensor.shape[1] > 1 && tensor.strides[1] != 1) {
    fail(argument, "contiguous columns (stride 1 in the last dimension)", describe(tensor));
  }
  require_data(argument, tensor);
}

void Arguments::require_matrix(std::string_view argument, const TensorView& tensor) const {
  require_input_matrix(argument, tensor);
  if (tensor.element_count() == 0) return;
  if (tensor.shape[0] > 1 && tensor.strides[0] < tensor.shape[1]) {
    fail(argument, "rows that do not overlap (row stride of at least the number of columns)",
         describe(tensor));
  }
}

void Arguments::require_vector(std::string_view argument, const TensorView& tensor) const {
  require_rank(argument, tensor, 1, "a vector (1 dimension)");
  if (tensor.shape[0] > 1 && tensor.strides[0] != 1) {
    fail(argument, "a contiguous vector", describe(tensor));
  }
  if (tensor.shape[0] > 0) require_data(argument, tensor);
}

void Arguments::require_data(std::string_view argument, const TensorView& tensor) const {
  if (tensor.data == nullptr) fail(argument, "data", "a null pointer");
  if (reinterpret_cast<std::intptr_t>(tensor.data) % size_of(tensor.dtype) != 0) {
    fail(argument, "data aligned to its element size", "an address that is not aligned");
  }
}

void Arguments::require_shape(std::string_view argument, const TensorView& tensor,
                              std::initializer_list<std::int64_t> shape) const {
  require_shape(argument, tensor, std::span(shape.begin(), shape.size()));
}

void Arguments::require_shape(std::string_view argument, const TensorView& tensor,
                              std::span<const std::int64_t> shape) const {
  require_sizes(argument, tensor);
  const std::span actual(tensor.shape.data(), static_cast<std::size_t>(tensor.rank));
  if (!std::ranges::equal(actual, shape)) {
    fail(argument, core::format("shape {}", shape), core::format("{}", actual));
  }
}

void Arguments::require_dtype(std::string_view argument, const TensorView& tensor,
                              std::initializer_list<DType> dtypes) const {
  if (std::ranges::find(dtypes, tensor.dtype) != dtypes.end()) return;
  std::vector<std::string_view> names;
  for (const DType dtype : dtypes) names.push_back(name(dtype));
  fail(argument, core::format("dtype {}", fmt::join(names, " or ")), name(tensor.dtype));
}

void Arguments::require_same_device(std::string_view argument, const TensorView& tensor,
                                    Device device) const {
  if (tensor.device != device) {
    fail(argument, core::format("a tensor on {}", describe_device(device)),
         core::format("one on {}", describe_device(tensor.device)));
  }
}

void Arguments::require_disjoint(std::string_view output_argument, const TensorView& output,
                                 std::string_view input_argument, const TensorView& input) const {
  if (memory_overlaps(output, input)) {
    fail(output_argument, core::format("memory of its own, apart from '{}'", input_argument),
         "memory that overlaps it");
  }
}

void Arguments::require_scaled(std::string_view argument, const ScaledTensorView& tensor,
                               std::int64_t matrices) const {
  require_matrix(argument, tensor.data);
  require_codes_and_scale(argument, tensor, matrices);
}

void Arguments::require_scaled_input(std::string_view argument, const ScaledTensorView& tensor,
                                     std::int64_t matrices) const {
  require_input_matrix(argument, tensor.data);
  require_codes_and_scale(argument, tensor, matrices);
}

void Arguments::require_codes_and_scale(std::string_view argument, const ScaledTensorView& tensor,
                                        std::int64_t matrices) const {
  require_dtype(argument, tensor.data, {DType::kE4M3, DType::kE5M2});
  require_enumerator(std::string(argument) + ".granularity", tensor.granularity);
  require_scale(std::string(argument) + ".scale", tensor, matrices);
  if (tensor.channel_scale) require_channel_scale(argument, tensor);
}

void Arguments::require_scale(std::string_view argument, const ScaledTensorView& tensor,
                              std::int64_t matrices) const {
  require_enumerator(argument, tensor.scale.dtype);
  require_enumerator(argument, tensor.scale.device.type);
  require_dtype(argument, tensor.scale, {DType::kFloat32});
  require_same_device(argument, tensor.scale, tensor.data.device);
  const auto [rows, cols] =
      scale_grid(tensor.granularity, tensor.data.shape[0], tensor.data.shape[1], matrices);
  if (!sizes_are_sane(tensor.scale) || !scale_shape_matches(tensor, matrices)) {
    fail(argument,
         core::format("shape {} for granularity {} of {}×{} codes",
                      scale_shape(tensor.granularity, tensor.data.shape[0], tensor.data.shape[1]),
                      name(tensor.granularity), tensor.data.shape[0], tensor.data.shape[1]),
         describe(tensor.scale));
  }
  if (rows * cols > 0) require_data(argument, tensor.scale);
}

void Arguments::require_channel_scale(std::string_view argument,
                                      const ScaledTensorView& tensor) const {
  const std::string name_of_it = std::string(argument) + ".channel_scale";
  if (tensor.granularity != Granularity::kBlock128x128) {
    fail(name_of_it, "none, except beside 128x128 scales",
         core::format("one beside {} scales", name(tensor.granularity)));
  }
  const TensorView& factors = *tensor.channel_scale;
  require_vector(name_of_it, factors);
  require_dtype(name_of_it, factors, {DType::kFloat32});
  require_shape(name_of_it, factors, {tensor.data.shape[0]});
  require_same_device(name_of_it, factors, tensor.data.device);
}

ByteRange byte_range(const TensorView& tensor) {
  const auto base = reinterpret_cast<std::intptr_t>(tensor.data);
  const Extent extent = extent_of(tensor);
  return {base + extent.begin * size_of(tensor.dtype), base + extent.end * size_of(tensor.dtype)};
}

bool memory_overlaps(const TensorView& left_view, const TensorView& right_view) {
  if (left_view.device != right_view.device) return false;
  if (left_view.element_count() == 0 || right_view.element_count() == 0) return false;
  const auto [left_begin, left_end] = byte_range(left_view);
  const auto [right_begin, right_end] = byte_range(right_view);
  if (left_end <= right_begin || right_end <= left_begin) return false;
  if (!is_row_strided(left_view) || !is_row_strided(right_view)) return true;

  const TensorView left = in_order(left_view), right = in_order(right_view);
  const auto stride_of = [](const TensorView& t) { return t.strides[0] * size_of(t.dtype); };
  const std::int64_t left_stride = left.shape[0] > 1 ? stride_of(left) : stride_of(right);
  const std::int64_t right_stride = right.shape[0] > 1 ? stride_of(right) : left_stride;
  if (left_stride != right_stride || left_stride <= 0) return true;
  return columns_overlap(left, right, left_stride);
}

}  // namespace octofold::core
