// torchao's Float8Tensor in safetensors, as transformers' save_pretrained() writes it. Source:
// torchao 0.18, prototype/safetensors/safetensors_support.py, and the tensors that it made of a
// linear layer.
#include "octofold/scale_layout.h"

#include "model/families/family.h"

namespace octofold::model {
namespace {

constexpr Spelling kSpellings[] = {{"_*_qdata", "_*_scale", ""}};
constexpr Granularity kGranularities[] = {Granularity::kChannel, Granularity::kTensor,
                                          Granularity::kBlock128x128};

std::vector<std::int64_t> shape_of(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  if (granularity == Granularity::kTensor) return {1, 1};
  if (granularity == Granularity::kChannel) return {rows, 1};
  return scale_shape(granularity, rows, cols);
}

/// Its dequantize() takes a block's size from the quotient of the shapes.
bool whole_blocks(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  return granularity != Granularity::kBlock128x128 ||
         (rows % kScaleBlock == 0 && cols % kScaleBlock == 0);
}

constexpr std::string_view kKnown = R"({"quant_method": null, "quant_type": null,
  "modules_to_not_convert": null, "include_input_output_embeddings": null,
  "untie_embedding_weights": null})";
constexpr std::string_view kKnownOfTypes = R"({"*": {"_version": null,
  "_type": ["Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig", "FqnToConfig",
            "ModuleFqnToConfig"],
  "_data": {"weight_dtype": null, "activation_dtype": null, "granularity": null, "mm_config": null,
    "packing_format": [{"_data": "PLAIN", "_type": "Float8PackingFormat"}], "version": null,
    "kernel_preference": null, "set_inductor_config": null, "fqn_to_config": null,
    "module_fqn_to_config": null}}})";

/// Checks what a config says of all layers, or of each by its name.
void require_known_types(const nlohmann::json& types) {
  if (!types.is_object()) return;
  require_known(kTorchao, types, nlohmann::json::parse(kKnownOfTypes),
                "quantization_config.quant_type.");
  for (const nlohmann::json& type : types) {
    if (!type.is_object() || !type.contains("_data") || !type["_data"].is_object()) continue;
    for (const char* names : {"fqn_to_config", "module_fqn_to_config"}) {
      require_known_types(type["_data"].value(names, nlohmann::json()));
    }
  }
}

bool recognizes(const nlohmann::json& config) {
  if (text_at(config, "quant_method") != "torchao") return false;
  require_known(kTorchao, config, nlohmann::json::parse(kKnown));
  require_known_types(config.value("quant_type", nlohmann::json()));
  return true;
}

nlohmann::json value(std::string_view type, nlohmann::json data) {
  return {{"_type", type}, {"_data", std::move(data)}};
}

nlohmann::json versioned(std::string_view type, int version, nlohmann::json data) {
  nlohmann::json object = value(type, std::move(data));
  object["_version"] = version;
  return object;
}

nlohmann::json e4m3() { return value("torch.dtype", "float8_e4m3fn"); }

/// Weights in FP8, multiplied in high precision: what the codes say and no more.
std::optional<nlohmann::json> config_of(const Description& checkpoint) {
  const bool rows =
      checkpoint.weights.empty() || checkpoint.weights.front().granularity != Granularity::kTensor;
  const nlohmann::json granularity = rows ? versioned("PerRow", 1, {{"dim", -1}})
                                          : versioned("PerTensor", 1, nlohmann::json::object());
  return nlohmann::json{{"include_input_output_embeddings", false},
                        {"modules_to_not_convert", checkpoint.skipped},
                        {"quant_method", "torchao"},
                        {"quant_type",
                         {{"default", versioned("Float8WeightOnlyConfig", 2,
                                                {{"granularity", granularity},
                                                 {"set_inductor_config", true},
                                                 {"weight_dtype", e4m3()}})}}},
                        {"untie_embedding_weights", false}};
}

/// Elements that share a scale.
std::vector<std::int64_t> block_of(const Description::Weight& weight) {
  const GranularityRow row = row_of(weight.granularity);
  const auto of = [](int unit, std::int64_t all) {
    return unit == GranularityRow::kWhole ? all : unit;
  };
  return {of(row.rows, weight.shape[0]), of(row.cols, weight.shape[1])};
}

constexpr std::string_view torch_name(std::string_view dtype) {
  if (dtype == "F64") return "float64";
  if (dtype == "F32") return "float32";
  return dtype == "F16" ? "float16" : "bfloat16";
}

constexpr std::string_view kAboutNames =
    "transformers loads such layers under other names than those in torchao's header; it loads "
    "them in the families compressed-tensors and finegrained-fp8";

/// Every entry is text, and what it says JSON.
std::map<std::string, std::string> metadata_of(const Description& checkpoint) {
  std::map<std::string, std::string> entries;
  std::vector<std::string> names;
  for (const std::string& name : checkpoint.others) {
    // torchao splits the names that it is told at a dot, and hands on what it is not told of.
    // Diffusers knows that, and loads no tensor but those that are told.
    if (name.find('.') == std::string::npos && !checkpoint.of_diffusers) continue;
    entries[name] = nlohmann::json{{"_type", "Tensor"}}.dump();
    names.push_back(name);
  }
  for (const Description::Weight& weight : checkpoint.weights) {
    nlohmann::json tensor =
        value("Float8Tensor", {{"act_quant_kwargs", nullptr},
                               {"block_size", block_of(weight)},
                               {"dtype", value("torch.dtype", torch_name(weight.dtype))},
                               {"kernel_preference", value("KernelPreference", "AUTO")},
                               {"mm_config", nullptr}});
    tensor["_tensor_data_names"] = {"qdata", "scale"};
    entries[weight.name] = tensor.dump();
    names.push_back(weight.name);
  }
  entries["tensor_names"] = nlohmann::json(names).dump();
  return entries;
}

}  // namespace

constinit const Family kTorchao = {.id = CheckpointFamily::kTorchao,
                                   .name = "torchao",
                                   .spellings = kSpellings,
                                   .granularities = kGranularities,
                                   .of_experts = {},
                                   .mixes = true,
                                   .about_experts = "transformers loads no experts in this family",
                                   .about_names = kAboutNames,
                                   .takes_sizes = whole_blocks,
                                   .scale_shape = shape_of,
                                   .recognizes = recognizes,
                                   .config = config_of,
                                   .metadata = metadata_of};

}  // namespace octofold::model
