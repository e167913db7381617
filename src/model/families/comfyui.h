// The notes of ComfyUI's files on single layers: in the header under `_quantization_metadata`, or
// in tensors `comfy_quant` of JSON text.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "model/checkpoint_source.h"

namespace octofold::model {

class Hints {
 public:
  /// Throws Error(kBadFormat) for text that is not what it should be, and Error(kUnsupported) for
  /// layers in another format than FP8.
  explicit Hints(const CheckpointSource& source);

  /// True if the layer of this weight is to multiply in high precision.
  bool of(std::string_view weight) const;
  /// Throws Error(kBadFormat) for a weight of another type than is said.
  void require_dtype(const CheckpointTensor& weight) const;

 private:
  void read_layer(const std::string& where, const std::string& module, const nlohmann::json& layer);

  std::unordered_set<std::string> full_precision_;
  std::unordered_map<std::string, std::string_view> dtypes_;
};

/// True if a tensor is nothing but such a note, or the marker `scaled_fp8`.
bool is_note(std::string_view name);

}  // namespace octofold::model
