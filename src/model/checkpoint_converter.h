// Rewrites the tensors of safetensors files, a tile at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_set>
#include <vector>

#include "octofold/checkpoint.h"

#include "model/deepseek_layout.h"
#include "model/safetensors_reader.h"
#include "model/safetensors_writer.h"

namespace octofold::model {

/// One run over a checkpoint of one file or many: what is common to its files.
class CheckpointConverter {
 public:
  /// names: of all tensors of the checkpoint. total_bytes: their data. `options` must outlive this.
  /// Warns in the log of skip patterns that match none of the names.
  CheckpointConverter(const QuantizeCheckpointOptions& options,
                      std::unordered_set<std::string> names, std::int64_t total_bytes);

  /// Writes one file and returns the names of the tensors in it.
  std::vector<std::string> convert(const SafetensorsReader& input,
                                   const std::filesystem::path& output);

  /// What was converted so far, without the files' paths.
  const QuantizeCheckpointReport& report() const { return report_; }

 private:
  std::vector<TensorInfo> plan(const SafetensorsReader& input) const;
  void copy(const SafetensorsReader& input, const TensorInfo& tensor, SafetensorsWriter& output);
  void quantize_weight(const SafetensorsReader& input, const TensorInfo& tensor,
                       SafetensorsWriter& output);
  void advance(std::int64_t bytes);

  const QuantizeCheckpointOptions& options_;
  WeightSelection selection_;
  std::unordered_set<std::string> names_;
  std::int64_t total_bytes_;
  QuantizeCheckpointReport report_;
  // Kept from tensor to tensor.
  std::vector<std::byte> input_;
  std::vector<std::byte> codes_;
  std::vector<float> scales_;
};

}  // namespace octofold::model
