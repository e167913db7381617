// Checks of the offsets or counts by which operations take groups of rows.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/check.h"

namespace octofold::core {

/// int32 [groups + 1] of at least one group, contiguous, on `device`. Returns how many groups.
std::int64_t require_offsets(const Arguments& check, std::string_view argument,
                             const TensorView& offsets, Device device);

/// Throws unless offsets that lie on the CPU begin at 0, do not decrease, do not exceed `rows`, and
/// are multiples of `unit`.
void require_ascending_offsets(const Arguments& check, std::string_view argument,
                               const TensorView& offsets, std::int64_t rows, int unit = 1);

/// Throws unless counts [groups] that lie on the CPU are from 0 to `most`.
void require_counts(const Arguments& check, std::string_view argument, const TensorView& counts,
                    std::int64_t most);

}  // namespace octofold::core
