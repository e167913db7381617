// What an operation reads, apart from what it writes.
#pragma once

#include <string_view>
#include <vector>

#include "octofold/tensor.h"

#include "core/check.h"
#include "ops/cast_targets.h"

namespace octofold::ops {

/// What is read, by name, so that whatever is written can be held apart from it.
class Inputs {
 public:
  explicit Inputs(const core::Arguments& check) : check_(check) {}

  void add(std::string_view argument, const TensorView& view) {
    inputs_.push_back({argument, view});
  }

  /// Something that is written joins them, apart from all that came before.
  void add_output(std::string_view argument, const TensorView& view) {
    for (const CastInput& input : inputs_) {
      check_.require_disjoint(argument, view, input.argument, input.view);
    }
    add(argument, view);
  }

  const std::vector<CastInput>& all() const { return inputs_; }

 private:
  const core::Arguments& check_;
  std::vector<CastInput> inputs_;
};

}  // namespace octofold::ops
