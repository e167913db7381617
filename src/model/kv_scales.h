// Scales of key-value caches, which some families keep beside the weights.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "model/families/family.h"

namespace octofold::model {

/// True if a tensor is the scale of an attention's keys or values, in any family's spelling:
/// "layers.0.self_attn.k_scale", "layers.0.self_attn.k_proj.k_scale" or, of older ones,
/// "layers.0.self_attn.k_proj.output_scale".
bool is_kv_scale(std::string_view tensor);

/// True if a tensor is a number of servers' that no family of Octofold's has a place for: a scale
/// of queries, of outputs, of keys and values together, a bound of inputs, a zero point.
bool is_other_calibration(const CheckpointTensor& tensor);
bool is_zero_point(std::string_view tensor);

/// The name that a family has for such a scale; nothing where it has no place for it.
std::optional<std::string> kv_scale_in(const Family& family, std::string_view tensor);

}  // namespace octofold::model
