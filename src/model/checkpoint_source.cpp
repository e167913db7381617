#include "model/checkpoint_source.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/check.h"
#include "core/file.h"
#include "model/json_text.h"
#include "model/safetensors.h"

namespace octofold::model {
namespace {

namespace fs = std::filesystem;

constexpr const char* kQuantizationName = "hf_quant_config.json";
constexpr std::size_t kOpenFiles = 4;

std::optional<nlohmann::json> read_if_there(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  return read_json_object(path);
}

/// The advice for weights in another format; empty: it is none that is known.
std::string_view about_format(const fs::path& path) {
  const std::string ending = path.extension();
  if (ending == ".gguf") {
    return ", but GGUF, which holds other quantizations: take the model from which it was made";
  }
  if (ending == ".bin" || ending == ".pt" || ending == ".pth" || ending == ".ckpt") {
    return ", but files of torch.save(): load them and write them with safetensors' save_file(), "
           "or write the model with its save_pretrained()";
  }
  return "";
}

/// Folders in a pipeline that hold weights.
std::vector<std::string> models_in(const fs::path& pipeline) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(pipeline, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->is_directory(error)) continue;
    for (fs::directory_iterator file(entry->path(), error); !error && file != end;
         file.increment(error)) {
      if (!file->path().filename().string().ends_with(kFileEnding)) continue;
      names.push_back(entry->path().filename());
      break;
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The index of a folder, or its only file of weights.
fs::path weights_in(std::string_view operation, const fs::path& folder) {
  std::vector<fs::path> indices;
  std::vector<fs::path> files;
  std::vector<fs::path> others;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.ends_with(kIndexEnding)) indices.push_back(entry->path());
    if (name.ends_with(kFileEnding)) files.push_back(entry->path());
    if (!about_format(entry->path()).empty()) others.push_back(entry->path());
  }
  if (error) core::fail_io("open", folder, error.value());
  // Beside a model's own file there may be variants, adapters, or the same once more (Mistral's
  // consolidated.safetensors). transformers and Diffusers look for these names, in this order.
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json",
        "diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model.safetensors"}) {
    if (fs::exists(folder / name, error)) return folder / name;
  }
  const std::vector<fs::path>& found = indices.empty() ? files : indices;
  if (found.size() == 1) return found.front();
  require_one_model(operation, folder);
  if (found.empty()) {
    core::fail_argument(operation, "input",
                        "a folder with one *.safetensors.index.json or one *.safetensors",
                        core::format("'{}' with none of either{}", folder.string(),
                                     others.empty() ? "" : about_format(others.front())));
  }
  std::vector<std::string> names;
  for (const fs::path& path : found) names.push_back(path.filename());
  std::sort(names.begin(), names.end());
  core::fail_argument(
      operation, "input",
      "a folder with one *.safetensors.index.json or one *.safetensors, or one of these files "
      "itself (several that make one model need their index)",
      core::format("'{}' with {}: {}", folder.string(), names.size(), quoted(names)));
}

}  // namespace

void require_path(std::string_view operation, std::string_view argument, const fs::path& path) {
  if (path.native().find('\0') == std::string::npos) return;
  const std::string cut = path.c_str();
  core::fail_argument(operation, argument, "a path", core::format("'{}' and a NUL behind it", cut));
}

void require_one_model(std::string_view operation, const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / "model_index.json", ignored)) return;
  const std::vector<std::string> models = models_in(folder);
  core::fail_argument(
      operation, "input",
      core::format("the folder of one model. Take the models of a pipeline one by one, each into a "
                   "folder of its own ({}), with the family torchao for those of Diffusers, and "
                   "put the results in their places in a copy of the pipeline",
                   models.empty() ? "transformer, text_encoder" : quoted(models)),
      core::format("'{}', a pipeline of Diffusers (it has a model_index.json)", folder.string()));
}

InputKind kind_of(std::string_view operation, std::string_view argument, const fs::path& path) {
  require_path(operation, argument, path);
  std::error_code error;
  if (!fs::exists(path, error) && !error) core::fail_io("open", path, ENOENT);
  const std::string name = path.filename();
  if (name.ends_with(kIndexEnding)) return InputKind::kIndex;
  if (name.ends_with(kFileEnding)) return InputKind::kFile;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return InputKind::kFolder;
  core::fail_argument(operation, argument,
                      "a *.safetensors or *.safetensors.index.json path, or a folder with one",
                      core::format("'{}'{}", path.string(), about_format(path)));
}

CheckpointSource::CheckpointSource(std::string_view operation, const fs::path& input)
    : kind_(kind_of(operation, "input", input)) {
  const fs::path path = kind_ == InputKind::kFolder ? weights_in(operation, input) : input;
  folder_ = path.parent_path();
  if (path.filename().string().ends_with(kIndexEnding)) {
    read_index(path);
  } else {
    add_shard(SafetensorsReader(path), path.filename());
  }
  config_ = read_if_there(folder_ / kConfigName);
  quantization_file_ = read_if_there(folder_ / kQuantizationName);
}

void CheckpointSource::read_index(const fs::path& path) {
  const ShardIndex index(path);
  index_name_ = path.filename();
  index_metadata_ = index.metadata();
  // One after another: a checkpoint may have more files than a process may have open.
  for (const auto& [name, tensors] : index.shards()) add_shard(index.open(name), name);
}

void CheckpointSource::add_shard(const SafetensorsReader& reader, const std::string& name) {
  Shard shard{.name = name, .tensors = {}, .metadata = reader.metadata()};
  for (const TensorInfo& tensor : reader.tensors()) {
    shard.tensors.push_back({.name = tensor.name,
                             .dtype = std::string(model::name(tensor.dtype)),
                             .shape = tensor.shape,
                             .file = folder_ / name,
                             .offset = reader.data_offset() + tensor.begin,
                             .bytes = tensor.byte_count()});
  }
  shards_.push_back(std::move(shard));
}

std::int64_t CheckpointSource::bytes() const {
  std::int64_t bytes = 0;
  for (const Shard& shard : shards_) {
    for (const CheckpointTensor& tensor : shard.tensors) bytes += tensor.bytes;
  }
  return bytes;
}

std::optional<nlohmann::json> CheckpointSource::quantization() const {
  if (config_) {
    for (const char* name : {"quantization_config", "compression_config"}) {  // the second is old
      const auto said = config_->find(name);
      if (said != config_->end() && said->is_object()) return *said;
    }
  }
  if (!quantization_file_) return std::nullopt;
  nlohmann::json said = quantization_file_->value("quantization", nlohmann::json::object());
  if (!said.is_object() || said.value("quant_algo", nlohmann::json()).is_null()) {
    return std::nullopt;
  }
  said["quant_method"] = "modelopt";
  return said;
}

const core::File& TensorBytes::open(const fs::path& path) {
  const auto found = std::find_if(files_.begin(), files_.end(),
                                  [&](const auto& entry) { return entry.first == path; });
  if (found != files_.end()) {
    files_.splice(files_.begin(), files_, found);
  } else {
    files_.emplace_front(path, core::File::open_for_reading(path));
    if (files_.size() > kOpenFiles) files_.pop_back();
  }
  return files_.front().second;
}

void TensorBytes::read(const CheckpointTensor& tensor, std::int64_t offset,
                       std::span<std::byte> bytes) {
  open(tensor.file).read_at(tensor.offset + offset, bytes);
}

std::vector<std::byte> TensorBytes::read(const CheckpointTensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
  read(tensor, 0, bytes);
  return bytes;
}

}  // namespace octofold::model
