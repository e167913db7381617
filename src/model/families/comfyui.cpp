// Single files of diffusion models, as ComfyUI, InvokeAI and others read them: unscaled, with
// `scale_weight` (and an empty tensor `scaled_fp8`), or with `weight_scale` and what the header or
// a tensor `comfy_quant` of the layer says. Source: ComfyUI's QUANTIZATION.md; the spellings also
// InvokeAI's pull request 9478.
#include "model/families/comfyui.h"

#include "core/check.h"
#include "model/families/family.h"
#include "model/json_text.h"

namespace octofold::model {
namespace {

constexpr Spelling kSpellings[] = {{"*", "?weight_scale", "?input_scale"},
                                   {"*", "?scale_weight", "?scale_input"}};
constexpr Granularity kGranularities[] = {Granularity::kTensor};
constexpr std::string_view kLayerEnding = ".comfy_quant";
constexpr std::string_view kMarker = "scaled_fp8";
constexpr const char* kHeaderEntry = "_quantization_metadata";
constexpr std::int64_t kMaxLayerBytes = 1 << 16;

bool recognizes(const nlohmann::json&) { return false; }  // it has no config.json

std::optional<nlohmann::json> config_of(const Description&) { return std::nullopt; }

std::map<std::string, std::string> metadata_of(const Description& checkpoint) {
  nlohmann::json layers = nlohmann::json::object();
  for (const Description::Weight& weight : checkpoint.weights) {
    nlohmann::json layer = {{"format", "float8_e4m3fn"}};
    if (weight.full_precision) layer["full_precision_matrix_mult"] = true;
    layers[module_of(weight.name)] = layer;
  }
  const nlohmann::json said = {{"format_version", "1.0"}, {"layers", layers}};
  return {{kHeaderEntry, said.dump()}};
}

nlohmann::json parse(const std::string& where, std::string_view text) {
  require_json_object_text(where, text);
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  if (value.is_discarded() || !value.is_object()) {
    core::fail(ErrorCode::kBadFormat, "{}: expected a JSON object, got other text", where);
  }
  return value;
}

}  // namespace

constinit const Family kComfyUi = {.id = CheckpointFamily::kComfyUi,
                                   .name = "comfyui",
                                   .spellings = kSpellings,
                                   .granularities = kGranularities,
                                   .of_experts = kGranularities,
                                   .unscaled = true,
                                   .mixes = true,
                                   .recognizes = recognizes,
                                   .config = config_of,
                                   .metadata = metadata_of};

Hints::Hints(const CheckpointSource& source) {
  TensorBytes data;
  for (const Shard& shard : source.shards()) {
    const std::string file = (source.folder() / shard.name).string();
    const auto said = shard.metadata.find(kHeaderEntry);
    if (said != shard.metadata.end()) {
      const std::string where = core::format("{}: metadata {}", file, kHeaderEntry);
      const nlohmann::json layers =
          parse(where, said->second).value("layers", nlohmann::json::object());
      for (const auto& [module, layer] : layers.items()) read_layer(where, module, layer);
    }
    for (const CheckpointTensor& tensor : shard.tensors) {
      if (!tensor.name.ends_with(kLayerEnding)) continue;
      const std::string where = core::format("{}: tensor {}", file, quote(tensor.name));
      if (tensor.bytes > kMaxLayerBytes) {
        core::fail(ErrorCode::kBadFormat, "{}: expected at most {} bytes of JSON, got {}", where,
                   kMaxLayerBytes, tensor.bytes);
      }
      const std::vector<std::byte> bytes = data.read(tensor);
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      read_layer(where, tensor.name.substr(0, tensor.name.size() - kLayerEnding.size()),
                 parse(where, text));
    }
  }
}

void Hints::read_layer(const std::string& where, const std::string& module,
                       const nlohmann::json& layer) {
  if (!layer.is_object()) return;
  const std::string format = text_at(layer, "format");
  if (format == "float8_e4m3fn") dtypes_[module] = "F8_E4M3";
  if (format == "float8_e5m2") dtypes_[module] = "F8_E5M2";
  if (!format.empty() && !dtypes_.contains(module)) {
    core::fail(ErrorCode::kUnsupported,
               "{}: layer {}: expected the format float8_e4m3fn or "
               "float8_e5m2, got {}",
               where, quote(module), quote(format));
  }
  require_known(
      kComfyUi, layer,
      {{"format", {}}, {"full_precision_matrix_mult", {}}, {"orig_dtype", {}}, {"orig_shape", {}}},
      core::format("layer {}: ", quote(module)));
  const nlohmann::json hint = layer.value("full_precision_matrix_mult", nlohmann::json());
  if (hint.is_boolean() && hint.get<bool>()) full_precision_.insert(module);
}

bool Hints::of(std::string_view weight) const {
  return full_precision_.contains(module_of(weight));
}

void Hints::require_dtype(const CheckpointTensor& weight) const {
  const auto said = dtypes_.find(module_of(weight.name));
  if (said == dtypes_.end() || said->second == weight.dtype) return;
  core::fail(ErrorCode::kBadFormat,
             "{}: tensor {}: expected {}, as the note on its layer says, got {}",
             weight.file.string(), quote(weight.name), said->second, weight.dtype);
}

bool is_note(std::string_view name) {
  return name == kMarker || name.ends_with(".scaled_fp8") || name.ends_with(kLayerEnding);
}

}  // namespace octofold::model
