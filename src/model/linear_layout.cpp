#include "model/linear_layout.h"

#include <utility>

#include "model/families/family.h"

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
