// Casts of many matrices, or stacks of them, by one launch of each kernel that a cast of one takes.
// Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/cast.h"

namespace octofold::plan {

/// The kind of a cast, on which its kernels depend: casts of the same kind can share a launch.
/// Nothing for a cast that takes kernels of its own: of a source that is worked out, of groups,
/// with two-level scales, reductions of columns or an amax that is given.
std::optional<CastProblem> batch_kind(const CastProblem& problem);

struct CastBatchConfig {
  std::vector<CastConfig> kernels;  ///< one after another
};
using CastBatchPlan = Plan<CastBatchConfig>;

/// Plans a batch of one kind. Blocks are counted by batch_blocks(). Throws as plan_cast() does.
CastBatchPlan plan_cast_batch(const CastProblem& kind, const Gpu& gpu);

/// The blocks of threads that a kernel of the plan has for one of the casts.
std::int64_t batch_blocks(const CastConfig& kernel, const CastProblem& problem);

}  // namespace octofold::plan
