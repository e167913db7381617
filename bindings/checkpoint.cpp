#include "octofold/checkpoint.h"

#include <filesystem>
#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "error.h"
#include "text.h"

namespace octofold::bindings {
namespace {

using Fields = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;
using Strings = tvm::ffi::Array<tvm::ffi::String>;
using Progress = tvm::ffi::TypedFunction<void(int64_t, int64_t)>;

template <typename Range>
Strings strings_of(const Range& texts) {
  Strings strings;
  for (const auto& text : texts) strings.push_back(std::string(text));
  return strings;
}

}  // namespace

Fields quantize_checkpoint(tvm::ffi::String input, tvm::ffi::String output, Strings skip,
                           bool use_default_skips, tvm::ffi::String profile,
                           tvm::ffi::Optional<bool> power_of_two, Progress progress) {
  QuantizeCheckpointOptions options{
      .use_default_skips = use_default_skips,
      .profile = parse_profile(view_of(profile)),
      .progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); }};
  if (power_of_two) options.power_of_two = *power_of_two;
  for (const tvm::ffi::String& pattern : skip) options.skip.emplace_back(view_of(pattern));

  const QuantizeCheckpointReport report =
      octofold::quantize_checkpoint(view_of(input), view_of(output), options);
  return {{"quantized", strings_of(report.quantized)},
          {"copied", strings_of(report.copied)},
          {"input_bytes", report.input_bytes},
          {"output_bytes", report.output_bytes},
          {"files", strings_of(report.files)}};
}

Strings default_skip_patterns() { return strings_of(octofold::default_skip_patterns()); }

OCTOFOLD_EXPORT(quantize_checkpoint)
OCTOFOLD_EXPORT(default_skip_patterns)

}  // namespace octofold::bindings
