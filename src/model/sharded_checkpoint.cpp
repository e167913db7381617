#include "model/sharded_checkpoint.h"

#include <optional>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "model/checkpoint_converter.h"
#include "model/deepseek_layout.h"
#include "model/file.h"
#include "model/json_text.h"
#include "model/staged_output.h"

namespace octofold::model {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "config.json";

/// A config.json like that of the input with its quantization_config; nothing where the input has
/// none.
std::optional<nlohmann::json> converted_config(const fs::path& folder) {
  const fs::path path = folder / kConfigName;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  nlohmann::json config = read_json_object(path);
  if (config.contains("quantization_config")) {
    core::fail(
        ErrorCode::kInvalidArgument,
        "quantize_checkpoint: argument 'input': expected a checkpoint that is not quantized, "
        "got one whose '{}' has a quantization_config",
        path.string());
  }
  config["quantization_config"] = quantization_config();
  return config;
}

void write_json(const fs::path& path, const nlohmann::json& value) {
  write_text_file(path, value.dump(2) + "\n");
}

}  // namespace

void ShardIndex::fail(std::string_view message) const {
  core::fail(ErrorCode::kBadFormat, "{}: {}", path_.string(), message);
}

ShardIndex::ShardIndex(const fs::path& path) : path_(path) {
  const nlohmann::json index = read_json_object(path);
  metadata_ = index.value("metadata", nlohmann::json::object());
  if (!metadata_.is_object()) {
    fail(core::format("metadata: expected an object, got {}", metadata_.type_name()));
  }
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    fail(core::format("weight_map: expected an object, got {}",
                      map == index.end() ? "an index without it" : map->type_name()));
  }
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      fail(core::format("weight_map: tensor {}: expected the name of a file, got {}", quote(tensor),
                        file.type_name()));
    }
    const auto& shard = file.get_ref<const std::string&>();
    if (!shard.ends_with(".safetensors") ||
        shard.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      fail(core::format(
          "weight_map: tensor {}: expected a .safetensors file beside the index, got {}",
          quote(tensor), quote(shard)));
    }
    shards_[shard].insert(tensor);
  }
}

std::unordered_set<std::string> ShardIndex::tensor_names() const {
  std::unordered_set<std::string> names;
  for (const auto& [shard, tensors] : shards_) names.insert(tensors.begin(), tensors.end());
  return names;
}

SafetensorsReader ShardIndex::open(const std::string& shard) const {
  SafetensorsReader reader(path_.parent_path() / shard);
  std::set<std::string> expected = shards_.at(shard);
  for (const TensorInfo& tensor : reader.tensors()) {
    if (expected.erase(tensor.name) == 0) {
      fail(core::format("weight_map: expected an entry that puts tensor {} in {}, where it is",
                        quote(tensor.name), quote(shard)));
    }
  }
  if (!expected.empty()) {
    fail(core::format("weight_map: expected tensor {} in {}, got a file without it",
                      quote(*expected.begin()), quote(shard)));
  }
  return reader;
}

QuantizeCheckpointReport quantize_sharded(const fs::path& input, const fs::path& folder,
                                          const fs::path& index_name,
                                          const QuantizeCheckpointOptions& options) {
  const ShardIndex index(input);
  const std::optional<nlohmann::json> config = converted_config(input.parent_path());
  // All shards are validated before the first is converted, and opened again one by one: a
  // checkpoint may have more of them than a process may have open files.
  std::int64_t total_bytes = 0;
  for (const auto& [shard, tensors] : index.shards()) {
    total_bytes += index.open(shard).data_bytes();
  }

  CheckpointConverter converter(options, index.tensor_names(), total_bytes);
  StagedFolder staged(folder);
  std::vector<fs::path> files;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const auto& [shard, tensors] : index.shards()) {
    for (const std::string& tensor : converter.convert(index.open(shard), staged.path() / shard)) {
      weight_map[tensor] = shard;
    }
    files.push_back(folder / shard);
  }
  if (config) {
    write_json(staged.path() / kConfigName, *config);
    files.push_back(folder / kConfigName);
  }
  QuantizeCheckpointReport report = converter.report();
  nlohmann::json metadata = index.metadata();
  metadata["total_size"] = report.output_bytes;
  write_json(staged.path() / index_name,
             {{"metadata", std::move(metadata)}, {"weight_map", std::move(weight_map)}});
  files.push_back(folder / index_name);
  staged.publish();
  report.files = std::move(files);
  return report;
}

}  // namespace octofold::model
