// Arguments on their way in: tensors as views, texts as names and paths, streams, formats and
// groups.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>
#include <type_traits>

#include "octofold/cast_sources.h"
#include "octofold/cast_targets.h"
#include "octofold/dot.h"
#include "octofold/error.h"
#include "octofold/grouped_gemm.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

#include "export.h"

namespace octofold::bindings {

using OptionalStream = tvm::ffi::Optional<int64_t>;

/// The stream with this handle; without one the stream that the tensor's framework is working on,
/// where tvm-ffi can ask it (torch), else the legacy default stream.
inline Stream stream_of(const OptionalStream& handle, const tvm::ffi::TensorView& tensor) {
  if (handle) return {reinterpret_cast<void*>(static_cast<std::uintptr_t>(*handle))};
  const DLDevice device = tensor.device();
  if (device.device_type == kDLCPU || device.device_type == kDLExtDev) return {};
  return {TVMFFIEnvGetStream(device.device_type, device.device_id)};
}

using OptionalText = tvm::ffi::Optional<tvm::ffi::String>;

inline std::string_view view_of(const tvm::ffi::String& text) { return {text.data(), text.size()}; }

/// A path comes and goes as its bytes, which need not be UTF-8.
inline std::filesystem::path path_of(const tvm::ffi::Bytes& name) {
  return std::string(name.data(), name.size());
}
inline tvm::ffi::Bytes bytes_of(const std::filesystem::path& path) {
  return tvm::ffi::Bytes(path.string());
}

/// Text that may name such a path: U+FFFD for what Python could not decode.
tvm::ffi::String as_utf8(std::string_view text);

using OptionalTensor = tvm::ffi::Optional<tvm::ffi::TensorView>;

/// The view of a DLPack tensor. Throws Error(kInvalidArgument), naming `operation` and `argument`,
/// for what no operation could take: a dtype, device or rank that Octofold does not know, data that
/// is not aligned to its elements. `dtypes` are those that the operation takes, in words.
MutableTensorView view_of(std::string_view operation, std::string_view argument,
                          const tvm::ffi::TensorView& tensor,
                          std::string_view dtypes = "float32, float16, bfloat16, e4m3 or e5m2");

/// The same memory, read as another dtype of the same size. NumPy cannot export the dtypes of
/// ml_dtypes: they come as integers, and this gives them their name back.
tvm::ffi::Tensor reinterpret(const tvm::ffi::Tensor& tensor, DLDataType dtype);

/// Its dtype and granularity are those of what is written.
inline Format format_of(const tvm::ffi::Optional<bool>& power_of_two,
                        const tvm::ffi::String& overflow, const tvm::ffi::String& rule) {
  Format format{.rule = parse_rule(view_of(rule)), .overflow = parse_overflow(view_of(overflow))};
  if (power_of_two) format.power_of_two = *power_of_two;
  return format;
}

/// The target 'out' of a product that casts, with scales of 1x128.
inline CastTarget target_of(std::string_view operation, const tvm::ffi::TensorView& data,
                            const tvm::ffi::TensorView& scale, Format format) {
  CastTarget target{.data = view_of(operation, "out", data, "e4m3 or e5m2"),
                    .scale = view_of(operation, "out.scale", scale, "float32"),
                    .format = format};
  target.format.dtype = target.data.dtype;
  return target;
}

inline constexpr std::string_view kNumbers = "float32, float16 or bfloat16";

/// Views of its tensors, with errors that name it.
struct CastOperation {
  std::string_view name;

  TensorView input(std::string_view argument, const tvm::ffi::TensorView& tensor) const {
    return view_of(name, argument, tensor, kNumbers);
  }
  /// FP8 codes and their scales.
  ScaledTensorView scaled_input(std::string_view argument, const tvm::ffi::TensorView& data,
                                const tvm::ffi::TensorView& scale,
                                const tvm::ffi::String& granularity) const {
    return {view_of(name, argument, data, "e4m3 or e5m2"),
            view_of(name, std::string(argument) + ".scale", scale, "float32"),
            parse_granularity(view_of(granularity))};
  }
  template <typename View = TensorView>
  std::optional<View> optional(std::string_view argument, const OptionalTensor& tensor,
                               std::string_view dtypes) const {
    if (!tensor) return std::nullopt;
    return view_of(name, argument, *tensor, dtypes);
  }
};

/// Takes one argument of a call after another. Braces keep the order of those within them,
/// parentheses do not.
struct Reader {
  CastOperation operation;
  const Call& call;
  std::int32_t next = 0;

  template <typename T>
  T take() {
    return argument<T>(call, next++);
  }
  MutableTensorView tensor(std::string_view name, std::string_view dtypes = kNumbers) {
    return view_of(operation.name, name, take<tvm::ffi::TensorView>(), dtypes);
  }
  std::optional<MutableTensorView> optional(std::string_view name,
                                            std::string_view dtypes = kNumbers) {
    return operation.optional<MutableTensorView>(name, take<OptionalTensor>(), dtypes);
  }
  Format format() {
    const auto power_of_two = take<tvm::ffi::Optional<bool>>();
    const auto overflow = take<tvm::ffi::String>(), rule = take<tvm::ffi::String>();
    return format_of(power_of_two, overflow, rule);
  }
  /// The stream of the handle, which is next, or of the call's first tensor.
  Stream stream() {
    return stream_of(take<OptionalStream>(), argument<tvm::ffi::TensorView>(call, 0));
  }
};

/// The norm that a call reads, of six tensors; three more, which it writes, and its options.
Normed normed_of(Reader& reads, Reader& more);

inline DotOperand operand_of(std::string_view operation, std::string_view argument,
                             const tvm::ffi::TensorView& data, const OptionalTensor& scale,
                             const OptionalText& granularity) {
  DotOperand operand{.data = view_of(operation, argument, data)};
  if (scale) {
    operand.scale = view_of(operation, std::string(argument) + ".scale", *scale, "float32");
  }
  if (granularity) operand.granularity = parse_granularity(view_of(*granularity));
  return operand;
}

/// One of the variant's kinds. `numbers`: offsets or counts.
template <typename Kinds>
Kinds groups_of(const CastOperation& operation, std::string_view kind,
                const tvm::ffi::TensorView& numbers,
                const tvm::ffi::Optional<std::int64_t>& expected_rows,
                const OptionalText& layout = {}) {
  constexpr bool kHasDepth = std::is_same_v<Kinds, Groups>;
  const auto view = [&](std::string_view argument) {
    return view_of(operation.name, argument, numbers, "int32");
  };
  if (kind == "rows") return RowGroups{view("groups.offsets")};
  if constexpr (kHasDepth) {
    if (kind == "depth") {
      return DepthGroups{view("groups.offsets"), parse_group_layout(view_of(layout.value()))};
    }
  }
  if (kind != "masked") {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(operation.name) + ": argument 'groups': expected " +
                    (kHasDepth ? "rows, masked or depth" : "rows or masked") + ", got " +
                    std::string(kind));
  }
  MaskedGroups masked{.counts = view("groups.counts")};
  if (expected_rows.has_value()) masked.expected_rows = *expected_rows;
  return masked;
}

}  // namespace octofold::bindings
