// What an operation reads, apart from what it writes.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "octofold/tensor.h"

#include "core/check.h"

namespace octofold::ops {

/// One of them, by its name in the call.
struct CastInput {
  std::string_view argument;
  TensorView view;  ///< a matrix
};

inline std::span<const std::int64_t> shape_of(const TensorView& tensor) {
  return {tensor.shape.data(), static_cast<std::size_t>(tensor.rank)};
}

/// Whether two matrices of one shape are the same one, which may be read and written.
inline bool is_same_memory(const TensorView& left, const TensorView& right) {
  return left.data == right.data && left.dtype == right.dtype &&
         left.strides[0] == right.strides[0];
}

/// All of them, so that whatever is written can be held apart from them.
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
