// Finds the matrices of a checkpoint that are stored the other way around than in linear layers.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "octofold/checkpoint.h"

namespace octofold::model {

/// transformers' names of all experts' matrices in one tensor, [experts, out, in] in most models.
bool is_stack_of_experts(std::string_view name);

/// Layouts of weights by shape: a linear layer has [out, in] and a bias of `out`. transformers'
/// Conv1D (GPT-2 and its kin) has [in, out], and some experts have [experts, in, out].
class LinearLayout {
 public:
  explicit LinearLayout(const std::vector<CheckpointTensor>& tensors);

  /// Why a matrix or a stack of experts is no weight of linear layers as FP8 families have them;
  /// empty: it is one, for all that shapes say.
  std::string_view objection(const CheckpointTensor& tensor) const;

 private:
  bool is_transposed_matrix(const CheckpointTensor& weight) const;
  bool is_transposed_stack(const CheckpointTensor& stack) const;
  /// The length of a layer's bias; 0: it has none.
  std::int64_t bias_of(const std::string& weight) const;

  std::unordered_map<std::string, std::vector<std::int64_t>> shapes_;
  // The matrices whose bias fits their columns alone: last names, and the modules they lie in.
  std::set<std::string> transposed_names_;
  std::set<std::string> transposed_parents_;
};

}  // namespace octofold::model
