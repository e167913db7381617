// The two families whose scales are called `weight_scale_inv`, "inv" being their word for the
// multiplier; the second also reads transformers' MXFP4, which gpt-oss has. Sources: config.json
// and the `inference` folder of https://huggingface.co/deepseek-ai/DeepSeek-V3;
// FineGrainedFP8Config and integrations/finegrained_fp8.py of transformers 5.23.
#include <array>

#include "core/check.h"
#include "model/families/family.h"

namespace octofold::model {
namespace {

/// The second is that of DeepSeek's own inference code (inference/convert.py).
constexpr Spelling kDeepSeekSpellings[] = {{"*", "*_scale_inv", ""}, {"*", "?scale", ""}};
/// The second is AutoFP8's, and vLLM's before compressed-tensors, with the same quant_method.
constexpr Spelling kFineGrainedSpellings[] = {{"*", "*_scale_inv", "?activation_scale"},
                                              {"*", "?weight_scale", "?input_scale"}};
constexpr SmallSpelling kSmall[] = {
    {WeightFormat::kMxfp4, "*_blocks", "*_scales", "", "", false, true}};
constexpr Granularity kBlocks[] = {Granularity::kBlock128x128};
constexpr Granularity kBlocksOrTensor[] = {Granularity::kBlock128x128, Granularity::kTensor};

/// Both have it; DeepSeek's own says the format too.
bool is_fp8(const nlohmann::json& config) { return text_at(config, "quant_method") == "fp8"; }

constexpr std::string_view kAboutSizes =
    "transformers without a GPU reads blocks of other sizes, or refuses them (servers, and "
    "transformers with a GPU, read 128x128)";

/// Without a GPU transformers takes a block's size from the quotient of the shapes.
bool takes_sizes(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  const auto is_read = [](std::int64_t size) {
    return size <= kScaleBlock || size % kScaleBlock == 0;
  };
  return granularity == Granularity::kTensor || (is_read(rows) && is_read(cols));
}

/// The keys of transformers, and of AutoFP8 and vLLM.
constexpr std::string_view kKnown = R"({"quant_method": null, "fmt": ["e4m3", "float8_e4m3fn"],
  "weight_block_size": [[128, 128]], "activation_scheme": ["dynamic", "static"],
  "modules_to_not_convert": null, "modules_to_convert": null, "ignored_layers": null,
  "is_checkpoint_fp8_serialized": null, "packed_modules_mapping": null, "dequantize": null,
  "quant_dtype": ["float8_e4m3fn"], "scale_fmt": ["float", "ue8m0"], "expert_dtype": ["fp8"],
  "kv_cache_scheme": ["static", "dynamic"]})";

bool names_format(const nlohmann::json& config) { return config.contains("fmt"); }

bool recognizes_deepseek(const nlohmann::json& config) {
  if (!is_fp8(config) || !names_format(config)) return false;
  require_known(kDeepSeekV3, config, nlohmann::json::parse(kKnown));
  return true;
}

constexpr std::string_view kKnownOfMxfp4 =
    R"({"quant_method": null, "modules_to_not_convert": null, "dequantize": null})";

bool is_mxfp4(const nlohmann::json& config) { return text_at(config, "quant_method") == "mxfp4"; }

std::set<WeightFormat> formats_of(const nlohmann::json& config) {
  return {is_mxfp4(config) ? WeightFormat::kMxfp4 : WeightFormat::kFp8};
}

bool recognizes_finegrained(const nlohmann::json& config) {
  if (is_mxfp4(config)) {
    require_known(kFineGrainedFp8, config, nlohmann::json::parse(kKnownOfMxfp4));
    return true;
  }
  if (!is_fp8(config) || names_format(config)) return false;
  require_known(kFineGrainedFp8, config, nlohmann::json::parse(kKnown));
  return true;
}

/// transformers makes FP8 layers of all linear ones that are not named here.
std::optional<nlohmann::json> config_of(const Description& checkpoint) {
  for (const std::string& module : checkpoint.skipped) {  // and of those with such an ending
    if (names_fp8(checkpoint, module)) {
      core::fail(ErrorCode::kInvalidArgument,
                 "argument 'skip': expected no layer in FP8 "
                 "whose name ends as that of one without, which would be left out too; got '{}'",
                 module);
    }
  }
  const bool blocks = checkpoint.weights.empty() ||
                      checkpoint.weights.front().granularity == Granularity::kBlock128x128;
  nlohmann::json config = {{"activation_scheme", all_static(checkpoint) ? "static" : "dynamic"},
                           {"modules_to_not_convert", checkpoint.skipped},
                           {"quant_method", "fp8"},
                           {"weight_block_size", nullptr}};
  if (blocks) config["weight_block_size"] = {kScaleBlock, kScaleBlock};
  return config;
}

std::optional<nlohmann::json> deepseek_config(const Description& checkpoint) {
  std::optional<nlohmann::json> config = config_of(checkpoint);
  (*config)["fmt"] = "e4m3";
  return config;
}

}  // namespace

constinit const Family kDeepSeekV3 = {.id = CheckpointFamily::kDeepSeekV3,
                                      .name = "deepseek-v3",
                                      .spellings = kDeepSeekSpellings,
                                      .granularities = kBlocks,
                                      .of_experts = kBlocks,
                                      .takes_sizes = takes_sizes,
                                      .leaves_other_sizes = false,
                                      .about_sizes = kAboutSizes,
                                      .recognizes = recognizes_deepseek,
                                      .config = deepseek_config};

constinit const Family kFineGrainedFp8 = {.id = CheckpointFamily::kFineGrainedFp8,
                                          .name = "finegrained-fp8",
                                          .spellings = kFineGrainedSpellings,
                                          .small = kSmall,
                                          .granularities = kBlocksOrTensor,
                                          .of_stacks = kBlocks,
                                          .of_experts = kBlocksOrTensor,
                                          .takes_sizes = takes_sizes,
                                          .about_sizes = kAboutSizes,
                                          .recognizes = recognizes_finegrained,
                                          .formats = formats_of,
                                          .config = config_of};

}  // namespace octofold::model
