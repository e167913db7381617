// Selects the tensors of a checkpoint in high precision that become FP8, and says why not others.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/checkpoint.h"

#include "model/families/family.h"
#include "model/linear_layout.h"

namespace octofold::model {

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
