// Checkpoints of several safetensors files and an index, as Hugging Face's transformers writes
// them.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "model/safetensors_reader.h"

namespace octofold::model {

/// A `*.safetensors.index.json`: {"metadata": {…}, "weight_map": {tensor: file}}.
class ShardIndex {
 public:
  /// Throws Error(kBadFormat) for what is not such an index, or for a shard that is not a plain
  /// file name: the files of a checkpoint lie beside its index.
  explicit ShardIndex(const std::filesystem::path& path);

  /// Names of the shards, and of the tensors that the index puts in each.
  const std::map<std::string, std::set<std::string>>& shards() const { return shards_; }
  const nlohmann::json& metadata() const { return metadata_; }

  /// Opens a shard. Throws Error(kBadFormat) unless it holds exactly the tensors that the index
  /// says.
  SafetensorsReader open(const std::string& shard) const;

 private:
  [[noreturn]] void fail(std::string_view message) const;

  std::filesystem::path path_;
  std::map<std::string, std::set<std::string>> shards_;
  nlohmann::json metadata_;
};

}  // namespace octofold::model
