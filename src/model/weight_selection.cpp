#include "model/weight_selection.h"

#include <algorithm>
#include <fnmatch.h>
#include <set>
#include <span>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "model/families/family.h"
#include "model/json_text.h"
#include "model/safetensors.h"
#include "model/scale_names.h"

namespace octofold::model {
namespace {

constexpr std::string_view kGateUp = ".gate_up_proj";
constexpr std::string_view kDown = ".down_proj";

/// "h.0.attn" and "c_proj" of "h.0.attn.c_proj.weight".
std::pair<std::string, std::string> split_module(const std::string& weight) {
  const std::string module = module_of(weight);
  const std::size_t dot = module.rfind('.');
  if (dot == std::string::npos) return {"", module};
  return {module.substr(0, dot), module.substr(dot + 1)};
}

}  // namespace

bool is_stack_of_experts(std::string_view name) {
  for (const std::string_view ending :
       {".experts.gate_up_proj", ".experts.down_proj", ".experts.up_proj", ".experts.gate_proj"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

LinearLayout::LinearLayout(const std::vector<CheckpointTensor>& tensors) {
  for (const CheckpointTensor& tensor : tensors) shapes_[tensor.name] = tensor.shape;
  for (const CheckpointTensor& tensor : tensors) {
    if (tensor.shape.size() != 2 || !tensor.name.ends_with(".weight")) continue;
    const std::int64_t bias = bias_of(tensor.name);
    if (bias == 0 || bias == tensor.shape[0] || bias != tensor.shape[1]) continue;
    auto [parent, name] = split_module(tensor.name);
    transposed_parents_.insert(std::move(parent));
    transposed_names_.insert(std::move(name));
  }
}

std::string_view LinearLayout::objection(const CheckpointTensor& tensor) const {
  if (tensor.shape.size() == 2) {
    if (!is_transposed_matrix(tensor)) return "";
    return "it is stored as [in, out] (transformers' Conv1D), and no FP8 layer is stored so";
  }
  if (shapes_.contains(tensor.name + "_bias")) {
    return "it is a stack of experts with biases, and transformers' FP8 experts have none";
  }
  if (!is_transposed_stack(tensor)) return "";
  return "it is a stack of experts stored as [experts, in, out], and FP8 experts are not stored so";
}

bool LinearLayout::is_transposed_matrix(const CheckpointTensor& weight) const {
  const std::int64_t bias = bias_of(weight.name);
  if (bias == 0 || bias != weight.shape[1]) return false;
  if (bias != weight.shape[0]) return true;
  // A square one: as its namesakes in other layers are, or those that it lies beside.
  const auto [parent, name] = split_module(weight.name);
  return transposed_names_.contains(name) || transposed_parents_.contains(parent);
}

/// Both stacks know the hidden size: [experts, 2 * inner, hidden] and [experts, hidden, inner].
bool LinearLayout::is_transposed_stack(const CheckpointTensor& stack) const {
  std::string experts(stack.name.substr(0, stack.name.rfind('.')));
  const auto both = {std::string_view(kGateUp), std::string_view(kDown)};
  for (const std::string_view name : both) {
    if (!shapes_.contains(experts + std::string(name))) return false;
  }
  const std::vector<std::int64_t>& up = shapes_.at(experts + std::string(kGateUp));
  const std::vector<std::int64_t>& down = shapes_.at(experts + std::string(kDown));
  if (up.size() != 3 || down.size() != 3) return false;
  const bool as_linear = up[1] == 2 * down[2] && up[2] == down[1];
  return !as_linear && up[2] == 2 * down[1] && up[1] == down[2];
}

std::int64_t LinearLayout::bias_of(const std::string& weight) const {
  const auto found = shapes_.find(module_of(weight) + ".bias");
  return found != shapes_.end() && found->second.size() == 1 ? found->second[0] : 0;
}

}  // namespace octofold::model

namespace octofold {

const std::vector<std::string>& default_skip_patterns() {
  static const std::vector<std::string> patterns = {
      // Embeddings; eh_proj joins one with hidden states in DeepSeek-V3's multi-token prediction.
      "*embed*", "*wte*", "*wpe*", "shared.weight", "*.shared.weight", "*relative_attention_bias*",
      "*eh_proj*",
      // Routers, and the weights by which a sparse-attention indexer ranks tokens: small, and an
      // error there picks other experts or tokens.
      "*.gate.weight", "*_gate.weight", "*router*", "*indexer.weights_proj*",
      // Weights that their model reads by itself: Mamba's steps in time, and the output of T5's
      // feed-forward layers, which transformers keeps in FP32.
      "*.dt_proj.weight", "*.DenseReluDense.wo.weight",
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

void require_patterns(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (pattern.empty() || pattern.find('\0') != std::string::npos) {
      core::fail_argument("quantize_checkpoint", "skip", "glob patterns of at least one character",
                          quote(pattern));
    }
  }
}

void warn_of_idle_patterns(const std::vector<std::string>& patterns,
                           const std::vector<CheckpointTensor>& tensors) {
  for (const std::string& pattern : patterns) {
    if (std::none_of(tensors.begin(), tensors.end(), [&](const CheckpointTensor& tensor) {
          return matches(pattern, tensor.name);
        })) {
      core::log(LogLevel::kWarning, "skip pattern {} matches no tensor of the checkpoint",
                quote(pattern));
    }
  }
}

using Marks = std::span<const std::string_view>;

/// The place where the first of the marks begins in a name; npos: there is none.
std::size_t find_any(const std::string& name, Marks marks) {
  std::size_t first = std::string::npos;
  for (const std::string_view mark : marks) first = std::min(first, ("." + name).find(mark));
  return first;
}

/// By the names that PEFT, Diffusers, kohya's scripts and LyCORIS give to what they put beside a
/// layer, and torch to the states of its optimizers.
constexpr std::string_view kOfAdapters[] = {".lora_",     ".lora.up", ".lora.down", "_lora.up",
                                            "_lora.down", "_lora1.",  "_lora2.",    ".lokr_",
                                            ".hada_",     ".oft_",    ".boft_",     ".ia3_",
                                            ".vera_",     ".hra_",    ".dora_",     ".adalora_"};
constexpr std::string_view kOfPeft[] = {".base_model.", ".modules_to_save."};
constexpr std::string_view kOfOptimizers[] = {".exp_avg", ".max_exp_avg", ".momentum_buffer",
                                              ".optimizer.", ".optim."};

}  // namespace

void require_model(const CheckpointContents& contents) {
  const CheckpointTensor* adapter = nullptr;
  std::set<std::string_view> names;
  for (const CheckpointTensor& tensor : contents.others) names.insert(tensor.name);
  for (const CheckpointTensor& tensor : contents.others) {
    const bool is_file = tensor.file.filename().string().starts_with("adapter_model");
    const std::size_t end = is_file ? 0 : find_any(tensor.name, kOfAdapters);
    // A model may call layers of its own so; adapters hold little else, under names of PEFT's.
    if (end == std::string::npos) {
      const bool is_matrix = tensor.shape.size() > 1 && tensor.name.ends_with(".weight");
      if (is_matrix && find_any(tensor.name, kOfPeft) == end) return;
      continue;
    }
    adapter = &tensor;
    const std::string layer = tensor.name.substr(0, std::max<std::size_t>(end, 1) - 1);
    if (names.contains(layer + ".weight") || names.contains(layer + ".base_layer.weight")) return;
  }
  if (adapter == nullptr) return;
  core::fail_argument(
      "quantize_checkpoint", "input",
      "a model's weights (merge the adapter into its model before, as by PEFT's "
      "merge_and_unload() or Diffusers' fuse_lora(), or quantize the model and load "
      "the adapter over it)",
      core::format("an adapter's, such as {}", quote(adapter->name)));
}

WeightSelection::WeightSelection(const QuantizeCheckpointOptions& options, const Family& family,
                                 Granularity granularity,
                                 const std::vector<CheckpointTensor>& tensors)
    : family_(family),
      granularity_(granularity),
      skip_(options.skip),
      layout_(tensors),
      unreadable_(options.loaded.unreadable) {
  require_patterns(options.skip);
  warn_of_idle_patterns(options.skip, tensors);
  if (options.use_default_skips) {
    const std::vector<std::string>& defaults = default_skip_patterns();
    skip_.insert(skip_.end(), defaults.begin(), defaults.end());
  }
}

bool WeightSelection::is_candidate(const CheckpointTensor& tensor) const {
  const auto dtype = find_safetensors_dtype(tensor.dtype);
  const bool matrix = tensor.shape.size() == 2 && tensor.name.ends_with(".weight");
  const bool stack =
      tensor.shape.size() == 3 && is_stack_of_experts(tensor.name) && !family_.of_stacks.empty();
  return (matrix || stack) && tensor.bytes > 0 && dtype &&
         (quantizable_dtype(*dtype) || *dtype == SafetensorsDType::kF64);
}

std::string WeightSelection::reason_against(const CheckpointTensor& tensor) const {
  const auto pattern = std::find_if(skip_.begin(), skip_.end(), [&](const std::string& candidate) {
    return matches(candidate, tensor.name);
  });
  if (pattern != skip_.end()) return std::string(kByPattern) + quote(*pattern);
  if (find_any(tensor.name, kOfAdapters) != std::string::npos) return "it is an adapter's";
  if (find_any(tensor.name, kOfOptimizers) != std::string::npos) {
    return "it is the state of an optimizer";
  }
  const std::string_view objection = layout_.objection(tensor);
  if (!objection.empty()) return std::string(objection);
  const auto unreadable = unreadable_.find(tensor.name);
  if (unreadable != unreadable_.end()) return unreadable->second;
  const MatrixSizes sizes(tensor.shape);
  const bool is_stack = tensor.shape.size() == 3;  // of those GPUs read blocks of any size
  if (is_stack || !family_.leaves_other_sizes ||
      family_.takes_sizes(granularity_, sizes.rows, sizes.cols)) {
    return "";
  }
  return core::format(
      "a size is no multiple of 128, and {} is read only if its {} scales are of whole blocks",
      family_.name, name(granularity_));
}

}  // namespace octofold::model
