// Weights in small formats by the names, types and shapes of their tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "octofold/checkpoint.h"

#include "model/families/family.h"
#include "model/scale_names.h"

namespace octofold::model {

/// "[64,128]".
std::string shape_text(std::span<const std::int64_t> shape);
/// Throws Error(kBadFormat): "<file>: tensor <name>: expected <expected>, got <got>".
[[noreturn]] void fail_tensor(const CheckpointTensor& tensor, std::string_view expected,
                              std::string_view got);

/// The codes of a weight as a tensor of the shape of its values.
CheckpointTensor values_of(const CheckpointWeight& weight);

/// The weight in a small format whose codes have this name and type, with scales of a type that its
/// scales have; nothing where these are no such codes. said: the formats that a config names;
/// empty: there is none. Throws Error(kBadFormat) where parts are missing or do not fit.
std::optional<CheckpointWeight> small_weight(const Family& family,
                                             const std::set<WeightFormat>& said,
                                             const CheckpointTensor& codes,
                                             const TensorsByName& tensors);

}  // namespace octofold::model
