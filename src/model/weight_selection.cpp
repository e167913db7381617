#include "model/weight_selection.h"

#include <algorithm>
#include <fnmatch.h>

#include "core/check.h"
#include "core/log.h"
#include "model/json_text.h"
#include "model/safetensors_dtype.h"

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
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

/// transformers' names of all experts' matrices in one tensor.
bool is_fused_experts(std::string_view name) {
  for (const std::string_view ending :
       {".experts.gate_up_proj", ".experts.down_proj", ".experts.up_proj", ".experts.gate_proj"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

}  // namespace

WeightSelection::WeightSelection(const QuantizeCheckpointOptions& options, const Family& family)
    : options_(options), family_(family), skip_(options.skip) {
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

bool WeightSelection::contains(const CheckpointTensor& tensor) const {
  const auto dtype = find_safetensors_dtype(tensor.dtype);
  const bool matrix = tensor.shape.size() == 2 && tensor.name.ends_with(".weight");
  const bool stack =
      tensor.shape.size() == 3 && is_fused_experts(tensor.name) && !family_.of_stacks.empty();
  return (matrix || stack) && tensor.bytes > 0 && dtype && quantizable_dtype(*dtype) &&
         std::none_of(skip_.begin(), skip_.end(),
                      [&](const std::string& pattern) { return matches(pattern, tensor.name); });
}

void WeightSelection::warn_of_idle_patterns(const std::vector<CheckpointTensor>& tensors) const {
  for (const std::string& pattern : options_.skip) {
    if (std::none_of(tensors.begin(), tensors.end(), [&](const CheckpointTensor& tensor) {
          return matches(pattern, tensor.name);
        })) {
      core::log(LogLevel::kWarning, "skip pattern {} matches no tensor of the checkpoint",
                quote(pattern));
    }
  }
}

}  // namespace octofold::model
