// NVIDIA's Model Optimizer, as TensorRT-LLM, vLLM and SGLang read it. Source: the `export` package
// of nvidia-modelopt 0.47 (convert_hf_config.py, quant_utils.py).
#include <algorithm>
#include <cctype>

#include "octofold/scale_layout.h"

#include "core/check.h"
#include "model/families/family.h"

namespace octofold::model {
namespace {

constexpr Spelling kSpellings[] = {{"*", "?weight_scale", "?input_scale"}};
constexpr SmallSpelling kSmall[] = {
    {WeightFormat::kNvfp4, "*", "?weight_scale", "?input_scale", "?weight_scale_2"},
    {WeightFormat::kMxfp4, "*", "?weight_scale", "?input_scale"},
    {WeightFormat::kMxfp8, "*", "?weight_scale", "?input_scale"}};
constexpr Granularity kGranularities[] = {Granularity::kChannel, Granularity::kTensor,
                                          Granularity::kBlock128x128};

std::vector<std::int64_t> shape_of(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  if (granularity != Granularity::kBlock128x128) {
    return plain_scale_shape(granularity, rows, cols);
  }
  const std::vector<std::int64_t> blocks = scale_shape(granularity, rows, cols);
  return {blocks[0], 1, blocks[1], 1};
}

constexpr std::string_view algorithm(Granularity granularity) {
  switch (granularity) {
    case Granularity::kTensor: return "FP8";
    case Granularity::kChannel: return "FP8_PER_CHANNEL_PER_TOKEN";
    default: return "FP8_PB_WO";
  }
}

constexpr std::pair<std::string_view, WeightFormat> kSmallAlgorithms[] = {
    {"NVFP4", WeightFormat::kNvfp4},
    {"W4A16_NVFP4", WeightFormat::kNvfp4},
    {"W4A8_MXFP4_FP8", WeightFormat::kMxfp4},
    {"MXFP8", WeightFormat::kMxfp8}};

/// Its exporter writes the algorithm of blocks in small letters.
std::string in_capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

constexpr std::string_view kKnown = R"({"quant_method": null, "quant_algo": null, "producer": null,
  "ignore": null, "exclude_modules": null, "group_size": null, "smoothquant_val": null,
  "kv_cache_quant_algo": ["FP8", "fp8"], "quantized_layers": {"*": {"group_size": null,
    "quant_algo": ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "fp8_pb_wo"]}},
  "kv_cache_scheme": {"num_bits": [8], "type": ["float"], "dynamic": [true, false]},
  "config_groups": {"*": {"targets": null,
    "weights": {"num_bits": [8], "type": ["float"], "dynamic": [false], "group_size": null},
    "input_activations": {"num_bits": [8], "type": ["float"], "dynamic": [true, false],
      "group_size": null}}}})";

std::set<WeightFormat> formats_of(const nlohmann::json& config) {
  const std::string said = in_capitals(text_at(config, "quant_algo"));
  for (const auto& [name, format] : kSmallAlgorithms) {
    if (said == name) return {format};
  }
  return fp8_alone(config);
}

/// Its algorithm is where hf_quant_config.json has it, under "quantization", or in config.json.
bool recognizes(const nlohmann::json& config) {
  if (text_at(config, "quant_method") != "modelopt") return false;
  const std::string text = in_capitals(text_at(config, "quant_algo"));
  const bool is_known =
      std::any_of(std::begin(kGranularities), std::end(kGranularities),
                  [&](Granularity granularity) { return text == algorithm(granularity); });
  const WeightFormat format = *formats_of(config).begin();
  const bool is_small = format != WeightFormat::kFp8;
  if (!is_known && !is_small && !text.empty()) {
    fail_unsupported(kModelOpt,
                     "quant_algo FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4, W4A16_NVFP4, "
                     "W4A8_MXFP4_FP8 or MXFP8",
                     text);
  }
  nlohmann::json known = nlohmann::json::parse(kKnown);
  if (is_small) {
    nlohmann::json& group = known["config_groups"]["*"];
    group["weights"]["num_bits"] = {format == WeightFormat::kMxfp8 ? 8 : 4};
    group["input_activations"]["num_bits"] = {4, 8};
    group["weights"]["group_size"] = known["group_size"] = {values_per_scale(format)};
  }
  require_known(kModelOpt, config, known);
  return true;
}

std::string_view algorithm_of(const Description& checkpoint) {
  return algorithm(checkpoint.weights.empty() ? Granularity::kChannel
                                              : checkpoint.weights.front().granularity);
}

nlohmann::json producer() { return {{"name", "octofold"}, {"version", OCTOFOLD_VERSION}}; }

/// It says groups of FP8 alone, whose scales are of tensors and static.
std::optional<nlohmann::json> config_of(const Description& checkpoint) {
  const std::string_view said = algorithm_of(checkpoint);
  nlohmann::json config = {{"ignore", checkpoint.skipped},
                           {"producer", producer()},
                           {"quant_algo", said},
                           {"quant_method", "modelopt"}};
  if (said == algorithm(Granularity::kTensor)) {
    const nlohmann::json floats = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
    nlohmann::json group = {{"targets", {"Linear"}}, {"weights", floats}};
    if (all_static(checkpoint)) group["input_activations"] = floats;
    config["config_groups"] = {{"group_0", group}};
  }
  return config;
}

std::vector<SideFile> side_files(const Description& checkpoint) {
  return {{"hf_quant_config.json",
           {{"producer", producer()},
            {"quantization",
             {{"exclude_modules", checkpoint.skipped},
              {"kv_cache_quant_algo",
               checkpoint.has_kv_scales ? nlohmann::json("FP8") : nlohmann::json()},
              {"quant_algo", algorithm_of(checkpoint)}}}}}};
}

}  // namespace

constinit const Family kModelOpt = {.id = CheckpointFamily::kModelOpt,
                                    .name = "modelopt",
                                    .spellings = kSpellings,
                                    .small = kSmall,
                                    .granularities = kGranularities,
                                    .of_experts = kGranularities,
                                    .tensor_needs_input = true,
                                    .kv_scales = KvScales::kOfProjections,
                                    .scale_shape = shape_of,
                                    .recognizes = recognizes,
                                    .formats = formats_of,
                                    .config = config_of,
                                    .side_files = side_files};

}  // namespace octofold::model
