// Rows that other threads write while a product runs.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/product.h"

namespace octofold::cpu {

/// Returns once this shard is there, and what was written before its flag can be read. Throws
/// Error(kUnavailable) where that takes longer than arrivals.most_seconds.
void await_shard(std::string_view operation, const core::Arrivals& arrivals, std::int64_t shard);

}  // namespace octofold::cpu
