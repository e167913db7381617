// cast(), a function for each source. After what a source reads come the same arguments: what is
// given for the two targets, and where groups begin; the results, and what the source writes; the
// options of the source, and those of all.
#include "octofold/cast.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <tvm/ffi/any.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <variant>
#include <vector>

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

constexpr CastOperation kCast{"cast"};

using tvm::ffi::AnyView;
using tvm::ffi::String;
using Tensor = tvm::ffi::TensorView;
using OptionalBool = tvm::ffi::Optional<bool>;
using OptionalInt = tvm::ffi::Optional<int64_t>;

// A target: one with scales that are given reads these. It is wanted where there is memory for it.
struct Target {
  const OptionalTensor& given_scale;
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

// The values that are cast, of a stack with the offsets that say which of its matrices are used.
struct PlainSource {
  TensorView x;
  const OptionalTensor& used;
};

void run(const PlainSource& source, Arguments arguments, Stream stream) {
  arguments.used = source.used;
  run(CastSource(source.x), arguments, stream);
}

// The export of a source: `kSource` makes it of what it reads, of what it writes and of its
// options.
template <auto kSource, typename Reads, typename Writes = void(), typename Options = void()>
struct CastExport;

template <auto kSource, typename... Reads, typename... Writes, typename... Options>
struct CastExport<kSource, void(Reads...), void(Writes...), void(Options...)> {
  static void call(Reads... reads, OptionalTensor rows_scale, OptionalTensor rows_amax,
                   OptionalTensor transposed_scale, OptionalTensor transposed_amax,
                   OptionalTensor offsets, OptionalTensor out, OptionalTensor out_scale,
                   OptionalTensor out_transposed, OptionalTensor out_transposed_scale,
                   OptionalTensor sums, OptionalTensor amax, OptionalTensor workspace,
                   Writes... writes, Options... options, OptionalText rows, OptionalText transposed,
                   OptionalBool power_of_two, String overflow, String rule, OptionalInt matrices,
                   OptionalText /*columns*/, OptionalText group_layout, OptionalStream stream) {
    const auto source = kSource(reads..., writes..., options...);
    run(source,
        {{rows_scale, rows_amax, out, out_scale, rows},
         {transposed_scale, transposed_amax, out_transposed, out_transposed_scale, transposed},
         {offsets, group_layout},
         {sums, amax, workspace},
         format_of(power_of_two, overflow, rule),
         matrices},
        stream_of(stream, std::get<0>(std::tie(reads...))));
  }
};

PlainSource plain(const Tensor& x, const OptionalTensor& used) {
  return {kCast.input("x", x), used};
}

Activated activated(const Tensor& x, const OptionalTensor& scale, const OptionalText& granularity,
                    const String& activation, const String& layout, const OptionalText& dtype) {
  Activated source{.x = input_of(x, scale, granularity),
                   .activation = parse_activation(view_of(activation)),
                   .layout = parse_gate_layout(view_of(layout))};
  if (dtype) source.dtype = parse_dtype(view_of(*dtype));
  return source;
}

ActivationGradient activation_gradient(const Tensor& gradient, const Tensor& x,
                                       const OptionalTensor& scale, const OptionalText& granularity,
                                       const String& activation, const String& layout) {
  return {.gradient = kCast.input("gradient", gradient),
          .x = input_of(x, scale, granularity),
          .activation = parse_activation(view_of(activation)),
          .layout = parse_gate_layout(view_of(layout))};
}

Normed normed(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
              const OptionalTensor& residual, const OptionalTensor& ada_scale,
              const OptionalTensor& ada_shift, const OptionalTensor& sum, const Tensor& rstd,
              const OptionalTensor& mean, const String& norm, double epsilon) {
  constexpr std::string_view kNumbers = "float32, float16 or bfloat16";
  return {.kind = parse_norm(view_of(norm)),
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
}

GatheredRows gathered(const Tensor& x, const Tensor& sources, const OptionalTensor& factors,
                      const OptionalTensor& transposed_factors, std::int64_t slots) {
  return {
      .x = kCast.input("x", x),
      .sources = view_of(kCast.name, "sources", sources, "int32"),
      .slots = slots,
      .factors = kCast.optional("factors", factors, "float32"),
      .transposed_factors = kCast.optional("transposed_factors", transposed_factors, "float32")};
}

// The arguments of a job: x, rows (codes, scales, granularity), transposed (likewise),
// power_of_two, overflow, rule, matrices.
constexpr std::int32_t kOfJob = 11, kOfTarget = 3;

std::optional<CastTarget> target_of(const CastOperation& operation, const std::string& argument,
                                    const AnyView* given, Format format) {
  const auto data = given[0].cast<OptionalTensor>();
  if (!data) return std::nullopt;
  format.granularity = parse_granularity(view_of(given[2].cast<String>()));
  CastTarget target{
      .data = view_of(operation.name, argument, *data, "e4m3 or e5m2"),
      .scale = view_of(operation.name, argument + ".scale", given[1].cast<Tensor>(), "float32"),
      .format = format};
  target.format.dtype = target.data.dtype;
  return target;
}

CastJob job_of(const CastOperation& operation, const AnyView* given) {
  const AnyView* options = given + 1 + 2 * kOfTarget;
  const Format format = format_of(options[0].cast<OptionalBool>(), options[1].cast<String>(),
                                  options[2].cast<String>());
  CastJob job{.source = operation.input("x", given[0].cast<Tensor>()),
              .targets = {.rows = target_of(operation, "out.rows", given + 1, format),
                          .transposed = target_of(operation, "out.transposed",
                                                  given + 1 + kOfTarget, format)}};
  if (const auto matrices = options[3].cast<OptionalInt>()) job.targets.matrices = *matrices;
  return job;
}

}  // namespace

// All jobs, one after another, and the stream.
void cast_many(const Call& call) {
  if (call.count % kOfJob != 1) TVM_FFI_THROW(TypeError) << "expected jobs and a stream";
  if (call.count == 1) return;
  std::vector<CastJob> jobs;
  jobs.reserve(static_cast<std::size_t>(call.count / kOfJob));
  for (std::int32_t first = 0; first + 1 < call.count; first += kOfJob) {
    const std::string name = "cast_many: job " + std::to_string(first / kOfJob);
    jobs.push_back(job_of({name}, call.given + first));
  }
  octofold::cast_many(
      jobs, stream_of(argument<OptionalStream>(call, call.count - 1), argument<Tensor>(call, 0)));
}

using CastPlain = CastExport<plain, void(Tensor, OptionalTensor)>;
using CastActivated = CastExport<activated, void(Tensor, OptionalTensor), void(),
                                 void(OptionalText, String, String, OptionalText)>;
using CastActivationGradient = CastExport<activation_gradient, void(Tensor, Tensor, OptionalTensor),
                                          void(), void(OptionalText, String, String)>;
using CastNormed = CastExport<normed,
                              void(Tensor, OptionalTensor, OptionalTensor, OptionalTensor,
                                   OptionalTensor, OptionalTensor),
                              void(OptionalTensor, Tensor, OptionalTensor), void(String, double)>;
using CastGathered = CastExport<gathered, void(Tensor, Tensor, OptionalTensor, OptionalTensor),
                                void(), void(std::int64_t)>;

// cast_plain() of what most calls want, the rows alone, in half as many arguments: the host's time
// counts.
void quantize(Tensor x, OptionalTensor given_scale, OptionalTensor out, OptionalTensor out_scale,
              OptionalText granularity, OptionalBool power_of_two, String overflow, String rule,
              OptionalInt matrices, OptionalStream stream) {
  const OptionalTensor none;
  const OptionalText no_transpose;
  const TensorView source = kCast.input("x", x);
  run(source,
      {{given_scale, none, out, out_scale, granularity},
       {none, none, none, none, no_transpose},
       {none, no_transpose},
       {none, none, none},
       format_of(power_of_two, overflow, rule),
       matrices},
      stream_of(stream, x));
}

OCTOFOLD_EXPORT_AS(cast_plain, CastPlain::call)
OCTOFOLD_EXPORT_AS(cast_activated, CastActivated::call)
OCTOFOLD_EXPORT_AS(cast_activation_gradient, CastActivationGradient::call)
OCTOFOLD_EXPORT_AS(cast_normed, CastNormed::call)
OCTOFOLD_EXPORT_AS(cast_gathered, CastGathered::call)
OCTOFOLD_EXPORT(quantize)
OCTOFOLD_EXPORT(cast_many)

}  // namespace octofold::bindings
