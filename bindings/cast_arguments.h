// The parts that the operations that cast have in common.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tvm/ffi/optional.h>

#include "octofold/cast_targets.h"

#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

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

/// Views of its tensors, with errors that name it.
struct CastOperation {
  std::string_view name;

  TensorView input(std::string_view argument, const tvm::ffi::TensorView& tensor) const {
    return view_of(name, argument, tensor, "float32, float16 or bfloat16");
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

}  // namespace octofold::bindings
