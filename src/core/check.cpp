#include "core/check.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/ranges.h>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
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

// Bytes in rows that lie apart, each `stride` behind the one before; 0: there is one.
struct ByteRows {
  std::intptr_t begin, end;
  std::int64_t width, count = 1, stride = 0;
};

// The bytes of a view, whatever the order and the signs of its strides. Where rows lie in rows that
// do not go on in one step, what is between the inner ones counts too.
ByteRows byte_rows(const TensorView& tensor) {
  const auto [begin, end] = byte_range(tensor);
  ByteRows rows{begin, end, size_of(tensor.dtype)};
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // in bytes, and how many
  for (std::int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 1 || tensor.strides[i] == 0) continue;
    steps.emplace_back(std::abs(tensor.strides[i]) * size_of(tensor.dtype), tensor.shape[i] - 1);
  }
  std::ranges::sort(steps);
  for (const auto& [step, times] : steps) {
    if (rows.count > 1 && step % rows.stride == 0 && step <= rows.count * rows.stride) {
      rows.count += times * (step / rows.stride);
      continue;
    }
    rows.width += (rows.count - 1) * rows.stride;
    const bool touch = step <= rows.width;
    rows.count = touch ? 1 : times + 1;
    rows.stride = touch ? 0 : step;
    if (touch) rows.width += times * step;
  }
  return rows;
}

// True if one of the rows lies in the other's range.
bool has_row_in(const ByteRows& rows, const ByteRows& other) {
  const std::int64_t gap = other.begin - rows.begin - rows.width;  // from the first row
  const std::int64_t first = gap < 0 ? 0 : gap / std::max<std::int64_t>(rows.stride, 1) + 1;
  return first < rows.count && rows.begin + first * rows.stride < other.end;
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
void Arguments::require_enumerator(std::string_view argument, GroupLayout layout) const {
  require_up_to(*this, argument, "GroupLayout", layout, GroupLayout::kTight);
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

void Arguments::require_runs(std::string_view argument, const TensorView& tensor) const {
  if (tensor.element_count() == 0) return;
  const auto last = static_cast<std::size_t>(tensor.rank) - 1;
  if (tensor.shape[last] > 1 && tensor.strides[last] != 1) {
    fail(argument, "a contiguous last dimension", describe(tensor));
  }
  require_data(argument, tensor);
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

ByteRange byte_range(const TensorView& tensor) {
  const auto base = reinterpret_cast<std::intptr_t>(tensor.data);
  const Extent extent = extent_of(tensor);
  return {base + extent.begin * size_of(tensor.dtype), base + extent.end * size_of(tensor.dtype)};
}

bool memory_overlaps(const TensorView& left_view, const TensorView& right_view) {
  if (left_view.device != right_view.device) return false;
  if (left_view.element_count() == 0 || right_view.element_count() == 0) return false;
  const ByteRows left = byte_rows(left_view), right = byte_rows(right_view);
  if (!has_row_in(left, right) || !has_row_in(right, left)) return false;
  // All rows have the same place in steps that divide both strides.
  const std::int64_t step = std::gcd(left.stride, right.stride);
  if (step == 0) return true;
  const std::int64_t shift = ((right.begin - left.begin) % step + step) % step;
  return shift < left.width || shift + right.width > step;
}

std::int64_t require_offsets(const Arguments& check, std::string_view argument,
                             const TensorView& offsets, Device device) {
  check.require_vector(argument, offsets);
  check.require_dtype(argument, offsets, {DType::kInt32});
  check.require_same_device(argument, offsets, device);
  if (offsets.shape[0] < 2 || offsets.shape[0] > std::numeric_limits<std::int32_t>::max()) {
    check.fail(argument, "[groups + 1] elements, for at least one group", describe(offsets));
  }
  return offsets.shape[0] - 1;
}

void require_ascending_offsets(const Arguments& check, std::string_view argument,
                               const TensorView& offsets, std::int64_t rows, int unit) {
  const auto* values = static_cast<const std::int32_t*>(offsets.data);
  std::int64_t least = 0, most = 0;  // the first one is 0
  for (std::int64_t i = 0; i < offsets.shape[0]; ++i) {
    if (values[i] < least || values[i] > most || values[i] % unit != 0) {
      check.fail(
          argument,
          core::format("entries that begin at 0, do not decrease and do not exceed {} rows{}", rows,
                       unit == 1 ? "" : core::format(", multiples of {}", unit)),
          core::format("{} at [{}]", values[i], i));
    }
    least = values[i];
    most = rows;
  }
}

void require_counts(const Arguments& check, std::string_view argument, const TensorView& counts,
                    std::int64_t most) {
  const auto* values = static_cast<const std::int32_t*>(counts.data);
  for (std::int64_t i = 0; i < counts.shape[0]; ++i) {
    if (values[i] >= 0 && values[i] <= most) continue;
    check.fail(argument, core::format("entries from 0 to {}", most),
               core::format("{} at [{}]", values[i], i));
  }
}

}  // namespace octofold::core
