// One FP8 matrix that an operation writes, and how: what all operations that cast check.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "octofold/cast_targets.h"

#include "core/check.h"
#include "kernels/cast/config/cast.h"
#include "ops/inputs.h"

namespace octofold::ops {

/// A target as matrices, checked against `shape`, that of its codes, and on the device. Of a stack
/// of `matrices`, whose scales have the shapes of CastTargets::matrices, as one matrix.
CastTarget checked_target(const core::Arguments& check, const std::string& argument,
                          const CastTarget& target, std::span<const std::int64_t> shape,
                          Device device, std::optional<std::int64_t> matrices = {});

/// The computation that a format prescribes for values of dtype `in`.
config::CastFormat format_of(const core::Arguments& check, const Format& format, DType in,
                             ScaleSource scales = ScaleSource::kComputed);

}  // namespace octofold::ops
