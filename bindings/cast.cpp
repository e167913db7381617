// cast(), a function for each source. After what a source reads come the same arguments: what is
// given for the two targets, and where groups begin; the results, and what the source writes; the
// options of the source, and those of all.
#include "octofold/cast.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <variant>

#include "cast_arguments.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {
namespace {

constexpr CastOperation kCast{"cast"};

using OptionalBool = tvm::ffi::Optional<bool>;
using OptionalInt = tvm::ffi::Optional<int64_t>;

// A target: one with scales that are given reads these. It is wanted where there is memory for it.
struct Target {
  const OptionalTensor& given_scale;
  const OptionalTensor& channel_scale;
  const OptionalTensor& amax;
  const OptionalTensor& data;
  const OptionalTensor& scale;
  const OptionalText& granularity;
};

std::optional<CastTarget> target_of(const std::string& argument, const Target& target,
                                    Format format) {
  if (!target.data || !target.granularity) return std::nullopt;
  format.granularity = parse_granularity(view_of(*target.granularity));
  const OptionalTensor& scale = target.given_scale ? target.given_scale : target.scale;
  CastTarget result{.data = view_of(kCast.name, argument, *target.data, "e4m3 or e5m2"),
                    .scale = {},
                    .format = format,
                    .scales = target.given_scale ? ScaleSource::kGiven : ScaleSource::kComputed};
  if (scale) result.scale = view_of(kCast.name, argument + ".scale", *scale, "float32");
  result.format.dtype = result.data.dtype;
  result.channel_scale =
      kCast.optional(argument + ".channel_scale", target.channel_scale, "float32");
  result.amax = kCast.optional(argument + ".amax", target.amax, "float32");
  return result;
}

// The input of an activation: numbers, or FP8 codes and their scales.
std::variant<TensorView, ScaledTensorView> input_of(const tvm::ffi::TensorView& x,
                                                    const OptionalTensor& scale,
                                                    const OptionalText& granularity) {
  if (scale && granularity) return kCast.scaled_input("x", x, *scale, *granularity);
  return kCast.input("x", x);
}

std::optional<TensorView> numbers(std::string_view argument, const OptionalTensor& tensor) {
  return kCast.optional(argument, tensor, "float32, float16 or bfloat16");
}

std::optional<MutableTensorView> of_columns(const std::string& name, const OptionalTensor& tensor) {
  return kCast.optional<MutableTensorView>("out.columns." + name, tensor, "float32");
}

struct GroupArguments {
  const OptionalTensor& offsets;
  const OptionalText& layout;
};
struct ColumnArguments {
  const OptionalTensor& sums;
  const OptionalTensor& amax;
  const OptionalTensor& workspace;
};

// The arguments that all sources have in common. (The results say which columns are wanted.)
struct Arguments {
  Target rows, transposed;
  GroupArguments groups;
  ColumnArguments columns;
  Format format;
  const OptionalInt& matrices;
  OptionalTensor used{};  // of a stack
};

void run(const CastSource& source, const Arguments& arguments, Stream stream) {
  const auto& [rows, transposed, groups, columns, format, matrices, used] = arguments;
  CastTargets targets{.rows = target_of("out.rows", rows, format),
                      .transposed = target_of("out.transposed", transposed, format),
                      .columns = {.sums = of_columns("sums", columns.sums),
                                  .amax = of_columns("amax", columns.amax),
                                  .workspace = of_columns("workspace", columns.workspace)},
                      .offsets = kCast.optional("offsets", groups.offsets, "int32"),
                      .used = kCast.optional("used", used, "int32")};
  if (groups.layout) targets.group_layout = parse_group_layout(view_of(*groups.layout));
  if (matrices) targets.matrices = *matrices;
  octofold::cast(source, targets, stream);
}

}  // namespace

void cast_plain(tvm::ffi::TensorView x, OptionalTensor used, OptionalTensor rows_scale,
                OptionalTensor rows_channel_scale, OptionalTensor rows_amax,
                OptionalTensor transposed_scale, OptionalTensor transposed_channel_scale,
                OptionalTensor transposed_amax, OptionalTensor offsets, OptionalTensor out,
                OptionalTensor out_scale, OptionalTensor out_transposed,
                OptionalTensor out_transposed_scale, OptionalTensor sums, OptionalTensor amax,
                OptionalTensor workspace, OptionalText rows, OptionalText transposed,
                OptionalBool power_of_two, tvm::ffi::String overflow, tvm::ffi::String rule,
                OptionalInt matrices, OptionalText /*columns*/, OptionalText group_layout,
                OptionalStream stream) {
  const TensorView source = kCast.input("x", x);
  run(source,
      {{rows_scale, rows_channel_scale, rows_amax, out, out_scale, rows},
       {transposed_scale, transposed_channel_scale, transposed_amax, out_transposed,
        out_transposed_scale, transposed},
       {offsets, group_layout},
       {sums, amax, workspace},
       format_of(power_of_two, overflow, rule),
       matrices,
       used},
      stream_of(stream, x));
}

// cast_plain() of what most calls want, the rows alone, in half as many arguments: the host's time
// counts.
void quantize(tvm::ffi::TensorView x, OptionalTensor given_scale, OptionalTensor out,
              OptionalTensor out_scale, OptionalText granularity, OptionalBool power_of_two,
              tvm::ffi::String overflow, tvm::ffi::String rule, OptionalInt matrices,
              OptionalStream stream) {
  const OptionalTensor none;
  const OptionalText no_transpose;
  const TensorView source = kCast.input("x", x);
  run(source,
      {{given_scale, none, none, out, out_scale, granularity},
       {none, none, none, none, none, no_transpose},
       {none, no_transpose},
       {none, none, none},
       format_of(power_of_two, overflow, rule),
       matrices},
      stream_of(stream, x));
}

void cast_activated(tvm::ffi::TensorView x, OptionalTensor x_scale, OptionalTensor rows_scale,
                    OptionalTensor rows_channel_scale, OptionalTensor rows_amax,
                    OptionalTensor transposed_scale, OptionalTensor transposed_channel_scale,
                    OptionalTensor transposed_amax, OptionalTensor offsets, OptionalTensor out,
                    OptionalTensor out_scale, OptionalTensor out_transposed,
                    OptionalTensor out_transposed_scale, OptionalTensor sums, OptionalTensor amax,
                    OptionalTensor workspace, OptionalText x_granularity,
                    tvm::ffi::String activation, tvm::ffi::String layout, OptionalText x_dtype,
                    OptionalText rows, OptionalText transposed, OptionalBool power_of_two,
                    tvm::ffi::String overflow, tvm::ffi::String rule, OptionalInt matrices,
                    OptionalText /*columns*/, OptionalText group_layout, OptionalStream stream) {
  Activated source{.x = input_of(x, x_scale, x_granularity),
                   .activation = parse_activation(view_of(activation)),
                   .layout = parse_gate_layout(view_of(layout))};
  if (x_dtype) source.dtype = parse_dtype(view_of(*x_dtype));
  run(source,
      {{rows_scale, rows_channel_scale, rows_amax, out, out_scale, rows},
       {transposed_scale, transposed_channel_scale, transposed_amax, out_transposed,
        out_transposed_scale, transposed},
       {offsets, group_layout},
       {sums, amax, workspace},
       format_of(power_of_two, overflow, rule),
       matrices},
      stream_of(stream, x));
}

void cast_activation_gradient(
    tvm::ffi::TensorView gradient, tvm::ffi::TensorView x, OptionalTensor x_scale,
    OptionalTensor rows_scale, OptionalTensor rows_channel_scale, OptionalTensor rows_amax,
    OptionalTensor transposed_scale, OptionalTensor transposed_channel_scale,
    OptionalTensor transposed_amax, OptionalTensor offsets, OptionalTensor out,
    OptionalTensor out_scale, OptionalTensor out_transposed, OptionalTensor out_transposed_scale,
    OptionalTensor sums, OptionalTensor amax, OptionalTensor workspace, OptionalText x_granularity,
    tvm::ffi::String activation, tvm::ffi::String layout, OptionalText rows,
    OptionalText transposed, OptionalBool power_of_two, tvm::ffi::String overflow,
    tvm::ffi::String rule, OptionalInt matrices, OptionalText /*columns*/,
    OptionalText group_layout, OptionalStream stream) {
  const ActivationGradient source{.gradient = kCast.input("gradient", gradient),
                                  .x = input_of(x, x_scale, x_granularity),
                                  .activation = parse_activation(view_of(activation)),
                                  .layout = parse_gate_layout(view_of(layout))};
  run(source,
      {{rows_scale, rows_channel_scale, rows_amax, out, out_scale, rows},
       {transposed_scale, transposed_channel_scale, transposed_amax, out_transposed,
        out_transposed_scale, transposed},
       {offsets, group_layout},
       {sums, amax, workspace},
       format_of(power_of_two, overflow, rule),
       matrices},
      stream_of(stream, x));
}

void cast_normed(tvm::ffi::TensorView x, OptionalTensor weight, OptionalTensor bias,
                 OptionalTensor residual, OptionalTensor ada_scale, OptionalTensor ada_shift,
                 OptionalTensor rows_scale, OptionalTensor rows_channel_scale,
                 OptionalTensor rows_amax, OptionalTensor transposed_scale,
                 OptionalTensor transposed_channel_scale, OptionalTensor transposed_amax,
                 OptionalTensor offsets, OptionalTensor out, OptionalTensor out_scale,
                 OptionalTensor out_transposed, OptionalTensor out_transposed_scale,
                 OptionalTensor sums, OptionalTensor amax, OptionalTensor workspace,
                 OptionalTensor sum, tvm::ffi::TensorView rstd, OptionalTensor mean,
                 tvm::ffi::String norm, double epsilon, OptionalText rows, OptionalText transposed,
                 OptionalBool power_of_two, tvm::ffi::String overflow, tvm::ffi::String rule,
                 OptionalInt matrices, OptionalText /*columns*/, OptionalText group_layout,
                 OptionalStream stream) {
  constexpr std::string_view kNumbers = "float32, float16 or bfloat16";
  const Normed source{.kind = parse_norm(view_of(norm)),
                      .epsilon = static_cast<float>(epsilon),
                      .x = kCast.input("x", x),
                      .residual = numbers("residual", residual),
                      .operands = {.weight = numbers("weight", weight),
                                   .bias = numbers("bias", bias),
                                   .ada_scale = numbers("ada_scale", ada_scale),
                                   .ada_shift = numbers("ada_shift", ada_shift)},
                      .sum = kCast.optional<MutableTensorView>("sum", sum, kNumbers),
                      .rstd = view_of(kCast.name, "rstd", rstd, "float32"),
                      .mean = kCast.optional<MutableTensorView>("mean", mean, "float32")};
  run(source,
      {{rows_scale, rows_channel_scale, rows_amax, out, out_scale, rows},
       {transposed_scale, transposed_channel_scale, transposed_amax, out_transposed,
        out_transposed_scale, transposed},
       {offsets, group_layout},
       {sums, amax, workspace},
       format_of(power_of_two, overflow, rule),
       matrices},
      stream_of(stream, x));
}

void cast_gathered(tvm::ffi::TensorView x, tvm::ffi::TensorView sources, OptionalTensor factors,
                   OptionalTensor transposed_factors, OptionalTensor rows_scale,
                   OptionalTensor rows_channel_scale, OptionalTensor rows_amax,
                   OptionalTensor transposed_scale, OptionalTensor transposed_channel_scale,
                   OptionalTensor transposed_amax, OptionalTensor offsets, OptionalTensor out,
                   OptionalTensor out_scale, OptionalTensor out_transposed,
                   OptionalTensor out_transposed_scale, OptionalTensor sums, OptionalTensor amax,
                   OptionalTensor workspace, int64_t slots, OptionalText rows,
                   OptionalText transposed, OptionalBool power_of_two, tvm::ffi::String overflow,
                   tvm::ffi::String rule, OptionalInt matrices, OptionalText /*columns*/,
                   OptionalText group_layout, OptionalStream stream) {
  const GatheredRows source{
      .x = kCast.input("x", x),
      .sources = view_of(kCast.name, "sources", sources, "int32"),
      .slots = slots,
      .factors = kCast.optional("factors", factors, "float32"),
      .transposed_factors = kCast.optional("transposed_factors", transposed_factors, "float32")};
  run(source,
      {{rows_scale, rows_channel_scale, rows_amax, out, out_scale, rows},
       {transposed_scale, transposed_channel_scale, transposed_amax, out_transposed,
        out_transposed_scale, transposed},
       {offsets, group_layout},
       {sums, amax, workspace},
       format_of(power_of_two, overflow, rule),
       matrices},
      stream_of(stream, x));
}

OCTOFOLD_EXPORT(cast_plain)
OCTOFOLD_EXPORT(quantize)
OCTOFOLD_EXPORT(cast_activated)
OCTOFOLD_EXPORT(cast_activation_gradient)
OCTOFOLD_EXPORT(cast_normed)
OCTOFOLD_EXPORT(cast_gathered)

}  // namespace octofold::bindings
