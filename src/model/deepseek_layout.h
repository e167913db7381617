// DeepSeek-V3's FP8 checkpoint layout: which tensors are FP8, and what accompanies them.
// Source: the `inference` folder and config.json of https://huggingface.co/deepseek-ai/DeepSeek-V3.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/checkpoint.h"

#include "model/safetensors_header.h"

namespace octofold::model {

/// The name of a weight's scales. "inv" is the layout's word for the multiplier.
std::string scale_name(std::string_view weight);

class WeightSelection {
 public:
  /// Throws Error(kInvalidArgument) for a pattern that is empty or holds a NUL.
  explicit WeightSelection(const QuantizeCheckpointOptions& options);

  /// Whether this tensor becomes FP8: a matrix named `*.weight` that quantize() can cast and no
  /// pattern skips.
  bool contains(const TensorInfo& tensor) const;

 private:
  std::vector<std::string> skip_;
};

/// Whether a glob pattern matches all of a name.
bool matches(const std::string& pattern, const std::string& name);

/// The FP8 weight and its scales, offsets unset.
TensorInfo fp8_weight(const TensorInfo& weight);
TensorInfo fp8_scale(const TensorInfo& weight);

/// What config.json says of such weights under "quantization_config".
nlohmann::json quantization_config();

}  // namespace octofold::model
