// The casts. A call has the arguments of its row in Python, in their order (cast_row.py): what the
// source reads; what is given for the two targets, and where groups begin; the results, and what
// the source writes; the options of the source, and those of all; the stream.
#include "octofold/cast.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <utility>
#include <variant>
#include <vector>

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::String;
using Tensor = tvm::ffi::TensorView;
using OptionalInt = tvm::ffi::Optional<int64_t>;

constexpr CastOperation kCast{"cast"};
constexpr std::int32_t kTensors = 12, kOptions = 8;  // that all casts have

// A target: one with scales that are given reads these. It is wanted where there is memory for it.
struct Target {
  OptionalTensor given_scale{}, amax{}, data{}, scale{};
  OptionalText granularity{};
};

std::optional<CastTarget> target_of(const CastOperation& operation, const std::string& argument,
                                    const Target& target, Format format) {
  if (!target.data || !target.granularity) return std::nullopt;
  CastTarget result;
  result.data = view_of(operation.name, argument, *target.data, "e4m3 or e5m2");
  format.dtype = result.data.dtype;
  format.granularity = parse_granularity(view_of(*target.granularity));
  result.format = format;
  if (target.given_scale) result.scales = ScaleSource::kGiven;
  const OptionalTensor& scale = target.given_scale ? target.given_scale : target.scale;
  if (scale) result.scale = view_of(operation.name, argument + ".scale", *scale, "float32");
  result.amax = operation.optional(argument + ".amax", target.amax, "float32");
  return result;
}

// The tensors and options that all casts have.
void read_targets(Reader& tensors, Reader& options, CastTargets& targets) {
  const auto take = [&] { return tensors.take<OptionalTensor>(); };
  Target rows{.given_scale = take(), .amax = take()};
  Target transposed{.given_scale = take(), .amax = take()};
  targets.offsets = tensors.optional("offsets", "int32");
  for (Target* target : {&rows, &transposed}) {
    target->data = take();
    target->scale = take();
    target->granularity = options.take<OptionalText>();
  }
  targets.columns = {.sums = tensors.optional("out.columns.sums", "float32"),
                     .amax = tensors.optional("out.columns.amax", "float32"),
                     .workspace = tensors.optional("out.columns.workspace", "float32")};
  const Format format = options.format();
  targets.rows = target_of(tensors.operation, "out.rows", rows, format);
  targets.transposed = target_of(tensors.operation, "out.transposed", transposed, format);
  if (const auto matrices = options.take<OptionalInt>()) targets.matrices = *matrices;
  options.take<OptionalText>();  // which columns are wanted, as the results say
  const auto layout = options.take<OptionalText>();
  if (layout) targets.group_layout = parse_group_layout(view_of(*layout));
}

TensorView plain(Reader& reads, Reader& /*more*/) { return reads.tensor("x"); }

// The input of an activation: numbers, or FP8 codes and their scales.
std::variant<TensorView, ScaledTensorView> activation_input(Reader& reads, Reader& more) {
  const auto x = reads.take<Tensor>();
  const auto scale = reads.take<OptionalTensor>();
  const auto granularity = more.take<OptionalText>();
  if (scale && granularity) return kCast.scaled_input("x", x, *scale, *granularity);
  return kCast.input("x", x);
}

Activated activated(Reader& reads, Reader& more) {
  Activated source{.x = activation_input(reads, more),
                   .activation = parse_activation(view_of(more.take<String>())),
                   .layout = parse_gate_layout(view_of(more.take<String>()))};
  if (const auto dtype = more.take<OptionalText>()) source.dtype = parse_dtype(view_of(*dtype));
  return source;
}

ActivationGradient activation_gradient(Reader& reads, Reader& more) {
  return {.gradient = reads.tensor("gradient"),
          .x = activation_input(reads, more),
          .activation = parse_activation(view_of(more.take<String>())),
          .layout = parse_gate_layout(view_of(more.take<String>()))};
}

GatheredRows gathered(Reader& reads, Reader& more) {
  return {.x = reads.tensor("x"),
          .sources = reads.tensor("sources", "int32"),
          .slots = more.take<std::int64_t>(),
          .factors = reads.optional("factors", "float32"),
          .transposed_factors = reads.optional("transposed_factors", "float32")};
}

// The cast of a source of which so many arguments stand before those of all casts, and between.
template <auto kSource, std::int32_t kReads, std::int32_t kMore>
void cast_source(const Call& call) {
  require_count(call, kReads + kTensors + kMore + kOptions + 1);
  Reader reads{kCast, call}, more{kCast, call, kReads + kTensors};
  const CastSource source = kSource(reads, more);
  CastTargets targets;
  if (std::holds_alternative<TensorView>(source)) targets.used = reads.optional("used", "int32");
  read_targets(reads, more, targets);
  octofold::cast(source, targets, more.stream());
}

constexpr std::pair<std::string_view, void (*)(const Call&)> kSources[] = {
    {"plain", cast_source<plain, 2, 0>},
    {"activated", cast_source<activated, 2, 4>},
    {"activation_gradient", cast_source<activation_gradient, 3, 3>},
    {"normed", cast_source<normed_of, 6, 5>},
    {"gathered", cast_source<gathered, 4, 1>}};

}  // namespace

// The function that casts sources of a kind.
tvm::ffi::Function cast(String source) {
  for (const auto& [name, cast_it] : kSources) {
    if (name == view_of(source)) return packed("cast", cast_it);
  }
  throw Error(ErrorCode::kInternal, "cast: no kind of source is " + std::string(view_of(source)));
}

// The cast of rows alone, which most calls want, in half as many arguments: the host's time counts.
void quantize(Tensor x, OptionalTensor given_scale, OptionalTensor out, OptionalTensor out_scale,
              OptionalText granularity, tvm::ffi::Optional<bool> power_of_two, String overflow,
              String rule, OptionalInt matrices, OptionalStream stream) {
  const TensorView source = kCast.input("x", x);
  CastTargets targets;
  targets.rows = target_of(kCast, "out.rows", {given_scale, {}, out, out_scale, granularity},
                           format_of(power_of_two, overflow, rule));
  if (matrices) targets.matrices = *matrices;
  octofold::cast(source, targets, stream_of(stream, x));
}

// All jobs, one after another, and the stream: of each x, and what all casts have.
void cast_many(const Call& call) {
  constexpr std::int32_t kOfJob = 1 + kTensors + kOptions;
  if (call.count % kOfJob != 1) TVM_FFI_THROW(TypeError) << "expected jobs and a stream";
  if (call.count == 1) return;
  std::vector<CastJob> jobs(static_cast<std::size_t>(call.count / kOfJob));
  std::int32_t next = 0;
  for (CastJob& job : jobs) {
    const std::string name = "cast_many: job " + std::to_string(next / kOfJob);
    Reader tensors{{name}, call, next}, options{{name}, call, next + 1 + kTensors};
    job.source = tensors.tensor("x");
    read_targets(tensors, options, job.targets);
    next += kOfJob;
  }
  octofold::cast_many(jobs, Reader{{}, call, next}.stream());
}

OCTOFOLD_EXPORT(cast)
OCTOFOLD_EXPORT(quantize)
OCTOFOLD_EXPORT(cast_many)

}  // namespace octofold::bindings
