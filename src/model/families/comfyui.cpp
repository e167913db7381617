// Single files of diffusion models, as ComfyUI, InvokeAI and others read them: unscaled, with
// `scale_weight` (and an empty tensor `scaled_fp8`), or with `weight_scale` and what the header or
// a tensor `comfy_quant` of the layer says. Source: ComfyUI's QUANTIZATION.md; the spellings also
// InvokeAI's pull request 9478.
#include "model/families/family.h"

namespace octofold::model {
namespace {

constexpr Spelling kSpellings[] = {{"*", "?weight_scale", "?input_scale"},
                                   {"*", "?scale_weight", "?scale_input"}};
constexpr Granularity kGranularities[] = {Granularity::kTensor};

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
  return {{"_quantization_metadata", said.dump()}};
}

}  // namespace

constinit const Family kComfyUi = {.id = CheckpointFamily::kComfyUi,
                                   .name = "comfyui",
                                   .spellings = kSpellings,
                                   .granularities = kGranularities,
                                   .of_stacks = {},
                                   .of_experts = kGranularities,
                                   .unscaled = true,
                                   .mixes = true,
                                   .tensor_needs_input = false,
                                   .kv_scales = KvScales::kNone,
                                   .about_experts = "",
                                   .about_names = "",
                                   .takes_sizes = any_sizes,
                                   .leaves_other_sizes = true,
                                   .about_sizes = "",
                                   .scale_shape = plain_scale_shape,
                                   .recognizes = recognizes,
                                   .config = config_of,
                                   .side_files = no_side_files,
                                   .metadata = metadata_of};

}  // namespace octofold::model
