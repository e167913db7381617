// The files of a checkpoint: one of weights, or an index and its shards, and what lies beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octofold/checkpoint.h"

#include "core/file.h"
#include "model/safetensors.h"

namespace octofold::model {

/// The kind of input that a path names.
enum class InputKind : std::uint8_t { kFile, kIndex, kFolder };

/// Throws Error(kInvalidArgument) for a path with a NUL, at which the system would cut it.
void require_path(std::string_view operation, std::string_view argument,
                  const std::filesystem::path& path);

/// Throws Error(kInvalidArgument) for the folder of a pipeline of Diffusers, whose models lie in
/// folders of their own, and says how each is taken.
void require_one_model(std::string_view operation, const std::filesystem::path& folder);

/// By its ending, or as a folder. Throws Error(kInvalidArgument) that names the argument.
InputKind kind_of(std::string_view operation, std::string_view argument,
                  const std::filesystem::path& path);

struct Shard {
  std::string name;  ///< of the file
  std::vector<CheckpointTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// All headers, read and validated; no data.
class CheckpointSource {
 public:
  CheckpointSource(std::string_view operation, const std::filesystem::path& input);

  InputKind kind() const { return kind_; }
  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<Shard>& shards() const { return shards_; }
  std::int64_t bytes() const;
  /// The name of the index, and its metadata. Nothing for a single file.
  const std::optional<std::string>& index_name() const { return index_name_; }
  const nlohmann::json& index_metadata() const { return index_metadata_; }
  /// config.json beside the weights.
  const std::optional<nlohmann::json>& config() const { return config_; }
  /// Its `quantization_config`, or what hf_quant_config.json says in the same words.
  std::optional<nlohmann::json> quantization() const;

 private:
  void add_shard(const SafetensorsReader& reader, const std::string& name);
  void read_index(const std::filesystem::path& path);

  InputKind kind_;
  std::filesystem::path folder_;
  std::vector<Shard> shards_;
  std::optional<std::string> index_name_;
  nlohmann::json index_metadata_ = nlohmann::json::object();
  std::optional<nlohmann::json> config_;
  std::optional<nlohmann::json> quantization_file_;
};

/// Bytes of tensors. Some files stay open: the scales of a weight may lie in another than its
/// codes.
class TensorBytes {
 public:
  /// Throws Error(kIo), also where the file is shorter than its header said.
  void read(const CheckpointTensor& tensor, std::int64_t offset, std::span<std::byte> bytes);
  std::vector<std::byte> read(const CheckpointTensor& tensor);

 private:
  const core::File& open(const std::filesystem::path& path);

  std::list<std::pair<std::filesystem::path, core::File>> files_;  // the last used first
};

}  // namespace octofold::model
