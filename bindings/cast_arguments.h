// What the operations that cast have in common.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tvm/ffi/optional.h>

#include "octofold/casts.h"

#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

inline QuantizeOptions options_of(const tvm::ffi::Optional<bool>& power_of_two,
                                  const tvm::ffi::String& overflow,
                                  const tvm::ffi::String& profile) {
  QuantizeOptions options{.profile = parse_profile(view_of(profile)),
                          .overflow = parse_overflow(view_of(overflow))};
  if (power_of_two) options.power_of_two = *power_of_two;
  return options;
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
  CastTargets targets(const OptionalTensor& data, const OptionalTensor& scale,
                      const OptionalTensor& transposed_data, const OptionalTensor& transposed_scale,
                      const ColumnTargets& columns, const tvm::ffi::String& granularity,
                      const OptionalText& transposed_granularity,
                      const OptionalTensor& offsets_of_groups = {},
                      const OptionalTensor& channel_scale = {},
                      const OptionalTensor& transposed_channel_scale = {},
                      const tvm::ffi::Optional<int64_t>& matrices = {}) const {
    const Granularity unit = parse_granularity(view_of(granularity));
    const Granularity transposed_unit =
        transposed_granularity ? parse_granularity(view_of(*transposed_granularity)) : unit;
    CastTargets targets{.rows = target("out.rows", data, scale, channel_scale, unit),
                        .transposed = target("out.transposed", transposed_data, transposed_scale,
                                             transposed_channel_scale, transposed_unit),
                        .columns = columns,
                        .offsets = offsets(offsets_of_groups)};
    if (matrices) targets.matrices = *matrices;
    return targets;
  }
  /// Where groups of rows begin.
  std::optional<TensorView> offsets(const OptionalTensor& tensor) const {
    return optional_input("offsets", tensor, "int32");
  }
  std::optional<TensorView> optional_input(std::string_view argument, const OptionalTensor& tensor,
                                           std::string_view dtypes) const {
    if (!tensor) return std::nullopt;
    return view_of(name, argument, *tensor, dtypes);
  }
  ColumnTargets columns(const OptionalTensor& sums, const OptionalTensor& amax,
                        const OptionalTensor& workspace) const {
    return {.sums = column_target("out.columns.sums", sums),
            .amax = column_target("out.columns.amax", amax),
            .workspace = column_target("out.columns.workspace", workspace)};
  }

 private:
  std::optional<MutableTensorView> column_target(std::string_view argument,
                                                 const OptionalTensor& tensor) const {
    if (!tensor) return std::nullopt;
    return view_of(name, argument, *tensor, "float32");
  }
  std::optional<MutableScaledTensorView> target(std::string_view argument,
                                                const OptionalTensor& data,
                                                const OptionalTensor& scale,
                                                const OptionalTensor& channel_scale,
                                                Granularity unit) const {
    if (!data) return std::nullopt;
    const std::string scale_argument = std::string(argument) + ".scale";
    MutableScaledTensorView view{
        view_of(name, argument, *data, "e4m3 or e5m2"),
        scale ? view_of(name, scale_argument, *scale, "float32") : MutableTensorView{}, unit};
    if (channel_scale) {
      const std::string factors = std::string(argument) + ".channel_scale";
      view.channel_scale = view_of(name, factors, *channel_scale, "float32");
    }
    return view;
  }
};

}  // namespace octofold::bindings
