// The place that a checkpoint is written to, and the files beside its weights there.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "octofold/checkpoint.h"
#include "octofold/format.h"

#include "model/checkpoint_source.h"
#include "model/rewrite_plan.h"

namespace octofold::model {

/// Throws Error(kInvalidArgument) for an output that is of another kind than the input, the input
/// itself, there already, or in a folder that has something in it; for the input where it is a
/// pipeline of Diffusers.
void check_output(std::string_view operation, const std::filesystem::path& input,
                  const std::filesystem::path& output);

/// Carries out a plan: all of a checkpoint, whole or not at all.
CheckpointReport write_checkpoint(const CheckpointSource& source, const RewritePlan& plan,
                                  const Format& format, const CheckpointProgress& progress,
                                  const std::filesystem::path& output);

}  // namespace octofold::model
