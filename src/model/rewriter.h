// Carries out a plan: writes the files of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "octofold/checkpoint.h"
#include "octofold/format.h"

#include "model/checkpoint_source.h"
#include "model/rewrite_plan.h"
#include "model/safetensors.h"
#include "model/small_weights.h"
#include "model/weights.h"

namespace octofold::model {

class Rewriter {
 public:
  /// total_bytes: of the input. `plan` and `progress` must outlive this.
  Rewriter(const RewritePlan& plan, const Format& format, const CheckpointProgress& progress,
           std::int64_t total_bytes);

  /// Writes one file of these steps, and returns the names of the tensors in it.
  std::vector<std::string> write(const std::vector<const Step*>& steps,
                                 const std::map<std::string, std::string>& metadata,
                                 const std::filesystem::path& output);

  /// Returns what was done so far, without the files' paths. Logs what was lost. Throws
  /// Error(kBadFormat) where no scale of inputs or caches is left.
  CheckpointReport finish();

 private:
  std::vector<TensorInfo> tensors_of(const Step& step) const;
  void run(const Step& step, SafetensorsWriter& output);
  void copy(const Step& step, SafetensorsWriter& output);
  void widen(const Step& step, SafetensorsWriter& output);
  void keep(const Step& step, SafetensorsWriter& output);
  void cast(const Step& step, SafetensorsWriter& output);
  void write_scales(const Step& step, const std::vector<float>& scales, SafetensorsWriter& output);
  void write_input_scale(const Step& step, SafetensorsWriter& output);
  /// Takes note of scales of the input, of inputs, caches or `codes`, that are none. Throws
  /// Error(kBadFormat) where all of a weight are, and it has codes that are numbers.
  void check(std::string_view of, const CheckpointTensor& scale, std::span<const float> values,
             const CheckpointTensor* codes = nullptr);
  /// The scales of each matrix of a weight that is FP8.
  std::vector<WeightScales> scales_of(const Step& step);
  /// Calls action(offset, bytes) for all bytes of a tensor, some at a time.
  template <typename Action>
  void each_piece(const CheckpointTensor& tensor, Action action);
  void advance(std::int64_t bytes);

  const RewritePlan& plan_;
  std::map<std::string, std::string> metadata_;  // of each file
  const CheckpointProgress& progress_;
  std::int64_t total_bytes_;
  CheckpointReport report_;
  TensorBytes data_;
  WeightCaster caster_;
  WeightCaster exact_caster_{kExactCast};
  std::vector<std::string> senseless_;                    // names of scales
  std::map<std::string_view, std::pair<int, int>> lost_;  // tensors of them, and those without any
  // Kept from tensor to tensor.
  std::vector<std::byte> input_;
  std::vector<std::byte> wide_;
};

}  // namespace octofold::model
