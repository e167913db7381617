#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "octofold/checkpoint.h"

#include "core/check.h"
#include "model/checkpoint_converter.h"
#include "model/file.h"
#include "model/safetensors_reader.h"
#include "model/sharded_checkpoint.h"

namespace octofold {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string_view argument, std::string_view expected, const fs::path& got,
                       std::string_view what = "") {
  core::fail_argument("quantize_checkpoint", argument, expected,
                      core::format("'{}'{}", got.string(), what));
}

/// The ending that tells what kind of checkpoint a path names.
std::string_view suffix_of(std::string_view argument, const fs::path& path) {
  for (const std::string_view suffix : {".safetensors.index.json", ".safetensors"}) {
    if (path.filename().string().ends_with(suffix)) return suffix;
  }
  fail(argument, "a *.safetensors or *.safetensors.index.json path", path);
}

/// The folder of a sharded output, which publishing replaces as a whole.
fs::path output_folder(const fs::path& output) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(fs::absolute(output, error).parent_path(), error);
  if (error) model::fail_io("open", output, error.value());
  if (!fs::exists(folder, error)) return folder;
  if (!fs::is_directory(folder, error) || !fs::is_empty(folder, error)) {
    if (error) model::fail_io("open", folder, error.value());
    fail("output", "a path in a folder that does not exist or is empty", output);
  }
  if (folder == fs::current_path(error)) {
    fail("output", "a path in a folder other than the current one, which would be replaced",
         output);
  }
  return folder;
}

QuantizeCheckpointReport quantize_file(const fs::path& input, const fs::path& output,
                                       const QuantizeCheckpointOptions& options) {
  const model::SafetensorsReader reader(input);
  std::unordered_set<std::string> names;
  for (const model::TensorInfo& tensor : reader.tensors()) names.insert(tensor.name);
  model::CheckpointConverter converter(options, std::move(names), reader.data_bytes());
  converter.convert(reader, output);
  QuantizeCheckpointReport report = converter.report();
  report.files = {output};
  return report;
}

}  // namespace

QuantizeCheckpointReport quantize_checkpoint(const fs::path& input, const fs::path& output,
                                             const QuantizeCheckpointOptions& options) {
  const std::string_view suffix = suffix_of("input", input);
  if (suffix_of("output", output) != suffix) {
    fail("output", core::format("a *{} path, as the input is", suffix), output);
  }
  std::error_code ignored;
  if (fs::equivalent(input, output, ignored)) {
    fail("output", "a path other than the input", output);
  }
  if (fs::exists(fs::symlink_status(output, ignored))) {
    fail("output", "a path that does not exist yet", output, ", which exists");
  }
  if (suffix == ".safetensors") return quantize_file(input, output, options);
  return model::quantize_sharded(input, output_folder(output), output.filename(), options);
}

}  // namespace octofold
