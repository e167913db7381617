#include "model/deepseek_layout.h"

#include <algorithm>
#include <fnmatch.h>

#include "octofold/casts.h"

#include "core/check.h"
#include "model/json_text.h"

namespace octofold {

const std::vector<std::string>& default_skip_patterns() {
  static const std::vector<std::string> patterns = {
      // Embeddings; eh_proj joins one with hidden states in DeepSeek-V3's multi-token prediction.
      "*embed*", "*wte*", "*wpe*", "shared.weight", "*relative_attention_bias*", "*eh_proj*",
      // Routers, and the weights by which a sparse-attention indexer ranks tokens: small, and an
      // error there picks other experts or tokens.
      "*.gate.weight", "*_gate.weight", "*router*", "*indexer.weights_proj*",
      // Output heads.
      "*lm_head*", "*.head.weight", "head.weight", "output.weight", "score.weight", "*classifier*"};
  return patterns;
}

}  // namespace octofold

namespace octofold::model {

std::string scale_name(std::string_view weight) { return std::string(weight) + "_scale_inv"; }

WeightSelection::WeightSelection(const QuantizeCheckpointOptions& options) : skip_(options.skip) {
  for (const std::string& pattern : skip_) {
    if (pattern.empty() || pattern.find('\0') != std::string::npos) {
      core::fail_argument("quantize_checkpoint", "skip", "glob patterns of one character or more",
                          quote(pattern));
    }
  }
  if (options.use_default_skips) {
    const std::vector<std::string>& defaults = default_skip_patterns();
    skip_.insert(skip_.end(), defaults.begin(), defaults.end());
  }
}

bool WeightSelection::contains(const TensorInfo& tensor) const {
  return tensor.name.ends_with(".weight") && tensor.shape.size() == 2 && tensor.byte_count() > 0 &&
         quantizable_dtype(tensor.dtype) &&
         std::none_of(skip_.begin(), skip_.end(),
                      [&](const std::string& pattern) { return matches(pattern, tensor.name); });
}

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

TensorInfo fp8_weight(const TensorInfo& weight) {
  return {.name = weight.name, .dtype = SafetensorsDType::kF8E4M3, .shape = weight.shape};
}

TensorInfo fp8_scale(const TensorInfo& weight) {
  return {.name = scale_name(weight.name),
          .dtype = SafetensorsDType::kF32,
          .shape = scale_shape(Granularity::kBlock128x128, weight.shape[0], weight.shape[1])};
}

nlohmann::json quantization_config() {
  return {{"activation_scheme", "dynamic"},
          {"fmt", "e4m3"},
          {"quant_method", "fp8"},
          {"weight_block_size", {kScaleBlock, kScaleBlock}}};
}

}  // namespace octofold::model
