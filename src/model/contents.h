// The contents of a checkpoint: its family, its weights in FP8, and the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "octofold/checkpoint.h"

#include "model/checkpoint_source.h"
#include "model/families/family.h"

namespace octofold::model {

/// Throws what inspect_checkpoint() throws.
CheckpointContents read_contents(const CheckpointSource& source);

/// How scales of this shape belong to codes of that one, if they are such as the family has: the
/// first of its granularities that they fit.
std::optional<Granularity> granularity_of(const Family& family, std::span<const std::int64_t> codes,
                                          std::span<const std::int64_t> scale);

}  // namespace octofold::model
