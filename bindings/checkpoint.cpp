#include "octofold/checkpoint.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

using Fields = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;
using Names = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::String>;
using Strings = tvm::ffi::Array<tvm::ffi::String>;
using Progress = tvm::ffi::TypedFunction<void(int64_t, int64_t)>;

template <typename Range>
Strings strings_of(const Range& texts) {
  Strings strings;
  for (const auto& text : texts) strings.push_back(std::string(text));
  return strings;
}

tvm::ffi::Array<tvm::ffi::Bytes> paths_of(const std::vector<std::filesystem::path>& files) {
  tvm::ffi::Array<tvm::ffi::Bytes> names;
  for (const std::filesystem::path& file : files) names.push_back(bytes_of(file));
  return names;
}

Fields reasons_of(const std::vector<LeftAlone>& weights) {
  Fields reasons;
  for (const LeftAlone& weight : weights) {
    reasons.Set(weight.name, tvm::ffi::String(weight.reason));
  }
  return reasons;
}

Fields fields_of(const std::map<std::string, WeightChange>& changes) {
  Fields fields;
  for (const auto& [weight, change] : changes) {
    fields.Set(weight, Fields{{"changed", change.changed},
                              {"values", change.values},
                              {"largest_error", change.largest_error}});
  }
  return fields;
}

Fields fields_of(const CheckpointReport& report) {
  return {{"quantized", strings_of(report.quantized)},     {"copied", strings_of(report.copied)},
          {"requantized", strings_of(report.requantized)}, {"changes", fields_of(report.changes)},
          {"not_finite", strings_of(report.not_finite)},   {"dropped", strings_of(report.dropped)},
          {"left_alone", reasons_of(report.left_alone)},   {"input_bytes", report.input_bytes},
          {"output_bytes", report.output_bytes},           {"files", paths_of(report.files)}};
}

std::optional<Granularity> granularity_of(const tvm::ffi::Optional<tvm::ffi::String>& name) {
  if (!name) return std::nullopt;
  return parse_granularity(view_of(*name));
}

CheckpointProgress progress_to(const Progress& progress) {
  return [&progress](std::int64_t done, std::int64_t total) { progress(done, total); };
}

LoadedModel loaded_of(const Names& modules, const Names& unreadable) {
  LoadedModel loaded;
  for (const auto& [file, library] : modules) loaded.modules.emplace(file, library);
  for (const auto& [name, reason] : unreadable) loaded.unreadable.emplace(name, reason);
  return loaded;
}

tvm::ffi::Array<int64_t> list_of(const std::vector<std::int64_t>& sizes) {
  return {sizes.begin(), sizes.end()};
}

Fields fields_of(const CheckpointTensor& tensor) {
  return {{"name", tvm::ffi::String(tensor.name)},
          {"dtype", tvm::ffi::String(tensor.dtype)},
          {"shape", list_of(tensor.shape)},
          {"file", bytes_of(tensor.file)},
          {"offset", tensor.offset},
          {"bytes", tensor.bytes}};
}

tvm::ffi::Any fields_or_none(const std::optional<CheckpointTensor>& tensor) {
  if (!tensor) return nullptr;
  return fields_of(*tensor);
}

Fields fields_of(const CheckpointWeight& weight) {
  const std::int64_t values = values_per_scale(weight.format);
  const std::string granularity =
      values > 0 ? "1x" + std::to_string(values) : std::string(name(weight.granularity));
  return {{"name", tvm::ffi::String(weight.name)},
          {"shape", list_of(weight.shape)},
          {"format", tvm::ffi::String(std::string(name(weight.format)))},
          {"codes", fields_of(weight.codes)},
          {"scale", fields_or_none(weight.scale)},
          {"second_scale", fields_or_none(weight.second_scale)},
          {"second_scale_divides", weight.second_scale_divides},
          {"input_scale", fields_or_none(weight.input_scale)},
          {"granularity", tvm::ffi::String(granularity)},
          {"full_precision", weight.full_precision}};
}

template <typename Range>
tvm::ffi::Array<Fields> list_of(const Range& values) {
  tvm::ffi::Array<Fields> list;
  for (const auto& value : values) list.push_back(fields_of(value));
  return list;
}

}  // namespace

Fields quantize_checkpoint(tvm::ffi::Bytes input, tvm::ffi::Bytes output, Strings skip,
                           bool use_default_skips, tvm::ffi::String family,
                           tvm::ffi::Optional<tvm::ffi::String> granularity, tvm::ffi::String rule,
                           tvm::ffi::Optional<bool> power_of_two, Names modules, Names unreadable,
                           Progress progress) {
  QuantizeCheckpointOptions options{.use_default_skips = use_default_skips,
                                    .family = parse_checkpoint_family(view_of(family)),
                                    .granularity = granularity_of(granularity),
                                    .rule = parse_rule(view_of(rule)),
                                    .loaded = loaded_of(modules, unreadable),
                                    .progress = progress_to(progress)};
  if (power_of_two) options.power_of_two = *power_of_two;
  for (const tvm::ffi::String& pattern : skip) options.skip.emplace_back(view_of(pattern));
  return fields_of(octofold::quantize_checkpoint(path_of(input), path_of(output), options));
}

Fields convert_checkpoint(tvm::ffi::Bytes input, tvm::ffi::Bytes output, tvm::ffi::String family,
                          tvm::ffi::Optional<tvm::ffi::String> granularity, Names modules,
                          Names unreadable, Progress progress) {
  return fields_of(octofold::convert_checkpoint(path_of(input), path_of(output),
                                                {.family = parse_checkpoint_family(view_of(family)),
                                                 .granularity = granularity_of(granularity),
                                                 .loaded = loaded_of(modules, unreadable),
                                                 .progress = progress_to(progress)}));
}

Fields inspect_checkpoint(tvm::ffi::Bytes input) {
  const CheckpointContents contents = octofold::inspect_checkpoint(path_of(input));
  tvm::ffi::Any family = nullptr;
  if (contents.family) family = tvm::ffi::String(std::string(name(*contents.family)));
  return {{"family", family},
          {"weights", list_of(contents.weights)},
          {"others", list_of(contents.others)},
          {"files", paths_of(contents.files)},
          {"bytes", contents.bytes}};
}

Strings checkpoint_families() {
  Strings names;
  for (const CheckpointFamily family : octofold::checkpoint_families()) {
    names.push_back(std::string(name(family)));
  }
  return names;
}

Strings default_skip_patterns() { return strings_of(octofold::default_skip_patterns()); }

OCTOFOLD_EXPORT(quantize_checkpoint)
OCTOFOLD_EXPORT(convert_checkpoint)
OCTOFOLD_EXPORT(inspect_checkpoint)
OCTOFOLD_EXPORT(checkpoint_families)
OCTOFOLD_EXPORT(default_skip_patterns)

}  // namespace octofold::bindings
