// Argument checks whose messages name the argument, what was expected and what came.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "octofold/error.h"
#include "octofold/tensor.h"

#include "core/format.h"

namespace octofold::core {

/// Throws Error(code) with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, core::format(text, std::forward<Args>(args)...));
}

/// Throws Error(kIo) with the system's reason behind the message: "cannot open 'x': No such …".
template <typename... Args>
[[noreturn]] void fail_io(int error_number, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorCode::kIo,
              core::format("{}: {}", core::format(text, std::forward<Args>(args)...),
                           std::generic_category().message(error_number)),
              error_number);
}

/// Throws Error(kInvalidArgument): "gemm: argument 'b': expected K = 128, got 64".
[[noreturn]] void fail_argument(std::string_view operation, std::string_view argument,
                                std::string_view expected, std::string_view got);

/// "float32 [3, 5] with strides [8, 1]", for messages.
std::string describe(const TensorView& tensor);

/// The checks of one operation's arguments: each names `operation` and the argument.
class Arguments {
 public:
  explicit Arguments(std::string_view operation) : operation_(operation) {}

  [[noreturn]] void fail(std::string_view argument, std::string_view expected,
                         std::string_view got) const {
    fail_argument(operation_, argument, expected, got);
  }

  /// A value of the enum, which a cast from an integer need not be.
  void require_enumerator(std::string_view argument, DType dtype) const;
  void require_enumerator(std::string_view argument, Granularity granularity) const;
  void require_enumerator(std::string_view argument, Overflow overflow) const;
  void require_enumerator(std::string_view argument, Activation activation) const;
  void require_enumerator(std::string_view argument, GateLayout layout) const;
  void require_enumerator(std::string_view argument, GroupLayout layout) const;
  void require_enumerator(std::string_view argument, DeviceType type) const;
  /// A number from which sizes are computed: from `least` to 2^bits, so that none overflows.
  void require_size(std::string_view argument, std::int64_t size, std::int64_t least = 0,
                    int bits = 48) const;
  /// Sizes ≥ 0 whose strides and product fit into memory; any rank.
  void require_sizes(std::string_view argument, const TensorView& tensor) const;
  /// Requires of a tensor that has elements: its data is not null, and aligned to them.
  void require_data(std::string_view argument, const TensorView& tensor) const;
  /// A contiguous last dimension, and data where there are elements; any rank.
  void require_runs(std::string_view argument, const TensorView& tensor) const;
  /// Rank 2, sizes ≥ 0, contiguous columns, data where there are elements. Rows may lie anywhere.
  void require_input_matrix(std::string_view argument, const TensorView& tensor) const;
  /// The same with rows that do not overlap.
  void require_matrix(std::string_view argument, const TensorView& tensor) const;
  /// The same for a contiguous vector.
  void require_vector(std::string_view argument, const TensorView& tensor) const;
  void require_shape(std::string_view argument, const TensorView& tensor,
                     std::span<const std::int64_t> shape) const;
  void require_shape(std::string_view argument, const TensorView& tensor,
                     std::initializer_list<std::int64_t> shape) const;
  /// One of the dtypes.
  void require_dtype(std::string_view argument, const TensorView& tensor,
                     std::initializer_list<DType> dtypes) const;
  void require_same_device(std::string_view argument, const TensorView& tensor,
                           Device device) const;
  /// `output` may not share memory with `input`.
  void require_disjoint(std::string_view output_argument, const TensorView& output,
                        std::string_view input_argument, const TensorView& input) const;
  /// An FP8 matrix with a float32 scale of the shape that its granularity asks for.
  /// Or a stack of `matrices`, as one matrix.
  void require_scaled(std::string_view argument, const ScaledTensorView& tensor,
                      std::int64_t matrices = 1) const;
  /// The same, whose rows may lie anywhere.
  void require_scaled_input(std::string_view argument, const ScaledTensorView& tensor,
                            std::int64_t matrices = 1) const;
  /// Checks the scale of checked codes, or a tensor of its shape. `argument` is its own name.
  void require_scale(std::string_view argument, const ScaledTensorView& tensor,
                     std::int64_t matrices = 1) const;

 private:
  /// Checks the dtype of an FP8 matrix, and its scale.
  void require_codes_and_scale(std::string_view argument, const ScaledTensorView& tensor,
                               std::int64_t matrices) const;
  /// Known dtype and device, this rank, sizes ≥ 0 whose strides and product fit into memory.
  void require_rank(std::string_view argument, const TensorView& tensor, std::int32_t rank,
                    std::string_view expected) const;

  std::string_view operation_;
};

/// From the first byte that a view touches to the one behind the last.
using ByteRange = std::pair<std::intptr_t, std::intptr_t>;
ByteRange byte_range(const TensorView& tensor);

/// True if any element of one view lies in memory of the other, so that side-by-side slices of one
/// buffer do not. Exact for views that are one row or rows at one stride, in any order of their
/// dimensions, if one of the strides divides the other; true in doubt.
bool memory_overlaps(const TensorView& left, const TensorView& right);

/// int32 [groups + 1] of at least one group, contiguous, on `device`. Returns how many groups.
std::int64_t require_offsets(const Arguments& check, std::string_view argument,
                             const TensorView& offsets, Device device);

/// Throws unless offsets that lie on the CPU begin at 0, do not decrease, do not exceed `rows`, and
/// are multiples of `unit`.
void require_ascending_offsets(const Arguments& check, std::string_view argument,
                               const TensorView& offsets, std::int64_t rows, int unit = 1);

/// Throws unless counts [groups] that lie on the CPU are from 0 to `most`.
void require_counts(const Arguments& check, std::string_view argument, const TensorView& counts,
                    std::int64_t most);

}  // namespace octofold::core
