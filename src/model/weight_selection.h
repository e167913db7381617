// Selects the tensors of a checkpoint in high precision that become FP8, and says why not others:
// by their names, sizes and layouts.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "octofold/checkpoint.h"

#include "model/families/family.h"

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

/// How the reasons begin that patterns give.
inline constexpr std::string_view kByPattern = "its name matches ";

/// Throws Error(kInvalidArgument) where tensors are an adapter's and not a model's.
void require_model(const CheckpointContents& contents);

class WeightSelection {
 public:
  /// Throws Error(kInvalidArgument) for a pattern that is empty or holds a NUL. Warns in the log of
  /// patterns of the caller's that match none of the tensors.
  WeightSelection(const QuantizeCheckpointOptions& options, const Family& family,
                  Granularity granularity, const std::vector<CheckpointTensor>& tensors);

  /// True if a tensor could become FP8: a matrix named `*.weight`, or where the family has stacks
  /// fused experts, of numbers that the rewriter casts.
  bool is_candidate(const CheckpointTensor& tensor) const;

  /// Why a candidate stays as it is; empty: it becomes FP8.
  std::string reason_against(const CheckpointTensor& tensor) const;

 private:
  const Family& family_;
  Granularity granularity_;
  std::vector<std::string> skip_;
  LinearLayout layout_;
  std::map<std::string, std::string> unreadable_;  // by name, why
};

}  // namespace octofold::model
