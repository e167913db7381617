// Which tensors of a checkpoint in high precision become FP8.
#pragma once

#include <string>
#include <vector>

#include "octofold/checkpoint.h"

#include "model/families/family.h"

namespace octofold::model {

class WeightSelection {
 public:
  /// Throws Error(kInvalidArgument) for a pattern that is empty or holds a NUL.
  WeightSelection(const QuantizeCheckpointOptions& options, const Family& family);

  /// Whether this tensor becomes FP8: a matrix named `*.weight`, or where the family has stacks
  /// fused experts, of numbers that quantize() casts, that no pattern skips.
  bool contains(const CheckpointTensor& tensor) const;

  /// Warns in the log of patterns of the caller's that match none of the tensors.
  void warn_of_idle_patterns(const std::vector<CheckpointTensor>& tensors) const;

 private:
  const QuantizeCheckpointOptions& options_;
  const Family& family_;
  std::vector<std::string> skip_;
};

}  // namespace octofold::model
