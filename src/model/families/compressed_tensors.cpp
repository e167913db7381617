// compressed-tensors, which llm-compressor and vLLM write and read. Source: its `quantization` and
// `compressors` packages, version 0.20.
#include <algorithm>
#include <set>

#include "octofold/scale_layout.h"

#include "core/check.h"
#include "model/families/family.h"

namespace octofold::model {
namespace {

constexpr Spelling kSpellings[] = {{"*", "*_scale", "?input_scale"}};
constexpr SmallSpelling kSmall[] = {
    {WeightFormat::kNvfp4, "*_packed", "*_scale", "?input_global_scale", "*_global_scale", true},
    {WeightFormat::kMxfp4, "*_packed", "*_scale", "?input_global_scale"},
    {WeightFormat::kMxfp8, "*", "*_scale", "?input_scale"}};
constexpr Granularity kGranularities[] = {Granularity::kChannel, Granularity::kTensor,
                                          Granularity::kBlock128x128, Granularity::kBlock1x128};

constexpr Granularity kOfExperts[] = {Granularity::kChannel, Granularity::kTensor};

std::vector<std::int64_t> shape_of(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  if (granularity == Granularity::kChannel) return {rows, 1};
  return scale_shape(granularity, rows, cols);
}

constexpr std::string_view kKnown = R"({"quant_method": null, "ignore": null, "version": null,
  "quantization_status": null, "global_compression_ratio": null, "run_compressed": null,
  "dequantize": null, "use_optimized_inference": null, "transform_config": {"config_groups": {}},
  "format": ["dense", "float-quantized", "naive-quantized", "mixed-precision",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"],
  "sparsity_config": {"format": ["dense"], "global_sparsity": null, "sparsity_structure": null,
    "registry_requires_subclass": null, "targets": null, "ignore": null},
  "config_groups": {"FP8": null, "FP8_DYNAMIC": null, "FP8_BLOCK": null, "*": {"targets": null,
    "format": ["dense", "float-quantized", "naive-quantized"],
    "weights": {"num_bits": [8], "type": ["float"], "symmetric": [true], "group_size": [0, 128, -1],
      "strategy": ["tensor", "channel", "block", "group"], "actorder": ["static", "weight", false],
      "block_structure": [[128, 128], "128x128"], "dynamic": [false], "observer": null,
      "observer_kwargs": null, "scale_dtype": null, "zp_dtype": null},
    "input_activations": {"num_bits": [8], "type": ["float"], "symmetric": [true],
      "group_size": [0, 128, -1], "strategy": ["tensor", "token", "group"],
      "dynamic": [true, false], "observer": null, "observer_kwargs": null, "scale_dtype": null,
      "zp_dtype": null, "block_structure": null},
    "output_activations": {"num_bits": [8], "type": ["float"], "symmetric": [true],
      "strategy": ["tensor"], "dynamic": [true, false], "observer": null, "observer_kwargs": null,
      "scale_dtype": null, "zp_dtype": null}}},
  "kv_cache_scheme": {"num_bits": [8], "type": ["float"], "symmetric": [true],
    "strategy": ["tensor", "token", "attn_head"], "dynamic": [true, false], "observer": null,
    "observer_kwargs": null, "scale_dtype": null, "zp_dtype": null, "group_size": [-1, 0]}})";
/// Meta's and transformers' FBGEMM has tensors of the same names and shapes, with channel scales.
constexpr std::string_view kKnownOfFbgemm = R"({"quant_method": null,
  "activation_scale_ub": null, "modules_to_not_convert": null})";

/// Its words for a small format, and of a group in it the arguments that differ from FP8's.
struct SmallScheme {
  std::string_view name;
  WeightFormat format;
  std::string_view weights;
};
constexpr SmallScheme kSmallSchemes[] = {
    {"nvfp4-pack-quantized", WeightFormat::kNvfp4,
     R"({"num_bits": [4], "strategy": ["tensor_group"], "group_size": [16]})"},
    {"mxfp4-pack-quantized", WeightFormat::kMxfp4,
     R"({"num_bits": [4], "strategy": ["group"], "group_size": [32]})"},
    {"mxfp8-quantized", WeightFormat::kMxfp8,
     R"({"num_bits": [8], "strategy": ["group"], "group_size": [32]})"}};
/// Inputs of any kind: no conversion keeps their scales.
constexpr std::string_view kKnownInputs = R"({"num_bits": [4, 8], "dynamic": [true, false, "local"],
  "strategy": ["tensor", "token", "group", "tensor_group"], "group_size": [0, 16, 32, 128, -1]})";

/// The scheme of a group, whose own format comes before the config's; nullptr: FP8.
const SmallScheme* scheme_of(const nlohmann::json& config, const nlohmann::json& group) {
  std::string said = group.is_object() ? text_at(group, "format") : "";
  if (said.empty()) said = text_at(config, "format");
  const auto* const found = std::ranges::find(kSmallSchemes, said, &SmallScheme::name);
  return found == std::end(kSmallSchemes) ? nullptr : found;
}

nlohmann::json groups_of(const nlohmann::json& config) {
  return config.value("config_groups", nlohmann::json::object());
}

std::set<WeightFormat> formats_of(const nlohmann::json& config) {
  std::set<WeightFormat> formats;
  for (const auto& group : groups_of(config)) {
    const SmallScheme* scheme = scheme_of(config, group);
    formats.insert(scheme == nullptr ? WeightFormat::kFp8 : scheme->format);
  }
  return formats.empty() ? fp8_alone(config) : formats;
}

/// The keys that are known, with the arguments of the config's groups in small formats.
nlohmann::json known_of(const nlohmann::json& config) {
  nlohmann::json known = nlohmann::json::parse(kKnown);
  const nlohmann::json groups = groups_of(config);
  for (const auto& [name, group] : groups.items()) {
    const SmallScheme* scheme = scheme_of(config, group);
    if (scheme == nullptr) continue;
    nlohmann::json own = known["config_groups"]["*"];
    own["format"] = {scheme->name};
    own["weights"].update(nlohmann::json::parse(scheme->weights));
    own["input_activations"].update(nlohmann::json::parse(kKnownInputs));
    known["config_groups"][name] = own;
  }
  return known;
}

bool recognizes(const nlohmann::json& config) {
  const std::string method = text_at(config, "quant_method");
  const bool is_fbgemm = method == "fbgemm_fp8";
  if (!is_fbgemm && method != "compressed-tensors") return false;
  require_known(kCompressedTensors, config,
                is_fbgemm ? nlohmann::json::parse(kKnownOfFbgemm) : known_of(config));
  return true;
}

/// Inputs are cast in groups of 128 then, which must divide K; the last rows may be fewer.
bool whole_groups(Granularity granularity, std::int64_t, std::int64_t cols) {
  return !varies_along_k(granularity) || cols % kScaleBlock == 0;
}

nlohmann::json arguments(std::string_view strategy, bool dynamic) {
  return {{"dynamic", dynamic}, {"num_bits", 8},   {"strategy", strategy},
          {"symmetric", true},  {"type", "float"}, {"group_size", nullptr}};
}

nlohmann::json weight_arguments(Granularity granularity) {
  nlohmann::json weights;
  switch (granularity) {
    case Granularity::kTensor: return arguments("tensor", false);
    case Granularity::kChannel: return arguments("channel", false);
    case Granularity::kBlock1x128:
      weights = arguments("group", false);
      weights["group_size"] = kScaleBlock;
      return weights;
    case Granularity::kBlock128x128:
      weights = arguments("block", false);
      weights["block_structure"] = {kScaleBlock, kScaleBlock};
      return weights;
  }
  return weights;
}

/// The scales of inputs as vLLM runs them: static ones where there are some, else one for each
/// token, or for 128 of it where weights have blocks along K.
nlohmann::json input_arguments(const Description::Weight& weight) {
  if (weight.static_input) return arguments("tensor", false);
  if (!varies_along_k(weight.granularity)) return arguments("token", true);
  nlohmann::json inputs = arguments("group", true);
  inputs["group_size"] = kScaleBlock;
  return inputs;
}

std::string escaped(std::string_view text) {
  std::string regex;
  for (const char c : text) {
    if (std::string_view(R"(.^$|()[]{}*+?\)").find(c) != std::string_view::npos) regex += '\\';
    regex += c;
  }
  return regex;
}

/// True if a module lies in a list of layers: a part of its name is a number.
bool in_a_list(std::string_view module) {
  for (std::size_t begin = 0; begin < module.size();) {
    const std::size_t dot = std::min(module.find('.', begin), module.size());
    const std::string_view part = module.substr(begin, dot - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      return true;
    }
    begin = dot + 1;
  }
  return false;
}

/// A regular expression for what a model has outside its lists of layers and the file has not in
/// FP8: heads that are tied to embeddings or new, whatever they are called. Of lists nothing is
/// said, as libraries rename what is in them.
std::string outside_the_lists(const Description& checkpoint) {
  std::set<std::string> endings;
  for (const Description::Weight& weight : checkpoint.weights) {
    for (const std::string& module : weight.modules) {
      if (!in_a_list(module)) endings.insert(escaped(ending_of(module)));
    }
  }
  std::string quantized;
  for (const std::string& ending : endings) {
    quantized.append(quantized.empty() ? "" : "|").append(ending);
  }
  const std::string but =
      quantized.empty() ? "" : core::format(R"((?!(?:.*\.)?(?:{})$))", quantized);
  return core::format(R"(re:(?!(?:.*\.)?\d+(?:\.|$)){}.*$)", but);
}

/// A regular expression for what is in lists and is not FP8, with whatever prefix.
std::string left_in_lists(const Description& checkpoint) {
  std::string left;
  for (const std::string& module : checkpoint.skipped) {
    if (!in_a_list(module) || names_fp8(checkpoint, module)) continue;
    left.append(left.empty() ? "" : "|").append(escaped(module));
  }
  return core::format(R"(re:(?:.*\.)?(?:{})$)", left.empty() ? "$^" : left);
}

/// One group for each kind of weight; of several each names its layers.
std::optional<nlohmann::json> config_of(const Description& checkpoint) {
  std::map<std::pair<Granularity, bool>, std::vector<std::string>> kinds;
  std::map<std::pair<Granularity, bool>, const Description::Weight*> examples;
  for (const Description::Weight& weight : checkpoint.weights) {
    const std::pair kind(weight.granularity, weight.static_input);
    for (const std::string& module : weight.modules) {
      if (!module.ends_with(".experts")) kinds[kind].push_back(module);
    }
    examples[kind] = &weight;
  }
  nlohmann::json groups = nlohmann::json::object();
  for (const auto& [kind, modules] : kinds) {
    nlohmann::json targets = modules;
    if (kinds.size() == 1) targets = {"Linear"};
    groups["group_" + std::to_string(groups.size())] = {
        {"input_activations", input_arguments(*examples[kind])},
        {"output_activations", nullptr},
        {"targets", targets},
        {"weights", weight_arguments(kind.first)}};
  }
  std::vector<std::string> ignored = checkpoint.skipped;
  ignored.push_back(left_in_lists(checkpoint));
  ignored.push_back(outside_the_lists(checkpoint));
  return nlohmann::json{
      {"config_groups", groups},
      {"format", "float-quantized"},
      {"global_compression_ratio", nullptr},
      {"ignore", ignored},
      {"kv_cache_scheme", checkpoint.has_kv_scales ? arguments("tensor", false) : nlohmann::json()},
      {"quant_method", "compressed-tensors"},
      {"quantization_status", "compressed"}};
}

}  // namespace

constinit const Family kCompressedTensors = {
    .id = CheckpointFamily::kCompressedTensors,
    .name = "compressed-tensors",
    .spellings = kSpellings,
    .small = kSmall,
    .granularities = kGranularities,
    .of_experts = kOfExperts,
    .mixes = true,
    .kv_scales = KvScales::kOfAttention,
    .about_experts = "transformers loads only channel and tensor scales for them",
    .takes_sizes = whole_groups,
    .scale_shape = shape_of,
    .recognizes = recognizes,
    .formats = formats_of,
    .config = config_of};

}  // namespace octofold::model
