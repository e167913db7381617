#include "model/sharded_checkpoint.h"

#include "core/check.h"
#include "model/json_text.h"

namespace octofold::model {

namespace fs = std::filesystem;
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

}  // namespace octofold::model
