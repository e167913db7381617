// The tensors that an operation reads, which lie apart from what it writes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octofold/cast_targets.h"
#include "octofold/tensor.h"

#include "core/check.h"

namespace octofold::ops {

/// One of them, by its name in the call.
struct CastInput {
  std::string argument;
  TensorView view;        ///< a matrix
  std::string part = {};  ///< of the argument: ".scale"
  bool is_written = false;
  std::string job = {};  ///< of several that are one call: " of job 3"
};

inline std::span<const std::int64_t> shape_of(const TensorView& tensor) {
  return {tensor.shape.data(), static_cast<std::size_t>(tensor.rank)};
}

inline void check_vector(const core::Arguments& check, std::string_view argument,
                         const TensorView& vector, std::initializer_list<DType> dtypes,
                         std::int64_t size, Device device) {
  check.require_vector(argument, vector);
  check.require_dtype(argument, vector, dtypes);
  check.require_shape(argument, vector, {size});
  check.require_same_device(argument, vector, device);
}

/// True if two matrices of one shape are the same one, which may be read and written.
inline bool is_same_memory(const TensorView& left, const TensorView& right) {
  return left.data == right.data && left.dtype == right.dtype &&
         left.strides[0] == right.strides[0];
}

/// Throws unless what is written has memory of its own.
inline void require_apart(const core::Arguments& check, std::string_view argument,
                          const TensorView& written, std::span<const CastInput> inputs) {
  for (const CastInput& input : inputs) {
    if (!core::memory_overlaps(written, input.view)) continue;
    check.require_disjoint(argument, written, input.argument + input.part + input.job, input.view);
  }
}

/// All of them, so that whatever is written can be held apart from them.
class Inputs {
 public:
  explicit Inputs(const core::Arguments& check) : check_(check) { inputs_.reserve(8); }

  void add(std::string_view argument, const TensorView& view, const char* part = "",
           bool is_written = false) {
    inputs_.push_back({std::string(argument), view, part, is_written, job_});
  }
  void add(std::string_view argument, const ScaledTensorView& tensor) {
    add(argument, tensor.data);
    add(argument, tensor.scale, ".scale");
  }
  void add(std::string_view argument, const CastTarget& target) {
    add(argument, target.data, "", true);
    add(argument, target.scale, ".scale", target.scales == ScaleSource::kComputed);
    if (target.amax) add(argument, *target.amax, ".amax");
  }

  /// Something that is written joins them, apart from all that came before.
  void add_output(std::string_view argument, const TensorView& view) {
    require_apart(check_, argument, view, inputs_);
    add(argument, view, "", true);
  }

  /// The tensors that join from now on belong to the job of this number.
  void begin_job(std::size_t number) { job_ = core::format(" of job {}", number); }

  /// Throws unless all that is written is apart from all else: in the order of addresses, as there
  /// may be thousands, each is held against those that reach to where it begins.
  void require_all_apart() const {
    std::vector<std::pair<core::ByteRange, const CastInput*>> memories, reaching;
    for (const CastInput& input : inputs_) {
      const bool is_empty = input.view.element_count() == 0;
      if (!is_empty) memories.emplace_back(core::byte_range(input.view), &input);
    }
    std::ranges::sort(memories);
    for (const auto& memory : memories) {
      std::erase_if(reaching, [&](auto& it) { return it.first.second <= memory.first.first; });
      for (const auto& it : reaching) {
        const auto* output = std::max(it.second, memory.second);
        const auto* other = std::min(it.second, memory.second);
        if (!output->is_written) std::swap(output, other);
        if (!output->is_written) continue;
        const std::string name = output->argument + output->part + output->job;
        require_apart(check_, name, output->view, {other, 1});
      }
      reaching.push_back(memory);
    }
  }

  const std::vector<CastInput>& all() const { return inputs_; }

 private:
  const core::Arguments& check_;
  std::string job_;
  std::vector<CastInput> inputs_;
};

}  // namespace octofold::ops
