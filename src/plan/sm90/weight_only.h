// Hopper's kernel for products of 16-bit numbers and FP8 weights: configurations to choose from,
// and what one is reckoned to take. Pure.
#pragma once

#include <string>
#include <vector>

#include "kernels/weight_only_sm90/config/weight_only.h"
#include "plan/gpu.h"
#include "plan/weight_only.h"

namespace octofold::plan {

/// All that there are for the problem, each once; none where another kernel has to take it: few
/// rows, other types, operands that TMA cannot address, another GPU.
std::vector<config::Sm90WeightOnlyConfig> sm90_weight_only_candidates(
    const WeightOnlyProblem& problem, const Gpu& gpu);

/// "sm90.256x128.w2.c1.b1": columns and rows of a tile, warpgroups, blocks that share a tile,
/// blocks to a multiprocessor.
std::string name_of(const config::Sm90WeightOnlyConfig& config);

/// Clocks of a multiprocessor.
double expected_clocks(const WeightOnlyProblem& problem, const config::Sm90WeightOnlyConfig& config,
                       const Gpu& gpu);

/// Its kernel, and how that is launched.
KernelPlan kernel_of(const WeightOnlyProblem& problem, const config::Sm90WeightOnlyConfig& config,
                     const Gpu& gpu);

}  // namespace octofold::plan
