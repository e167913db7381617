// Planners for Hopper, whose warpgroups multiply.
#pragma once

#include "plan/attention.h"
#include "plan/product.h"
#include "plan/weight_only.h"

namespace octofold::plan::sm90 {

/// By kernels/sm90.
const ProductPlanner& product_planner();

/// By kernels/weight_only_sm90: more than some rows of 16-bit numbers that TMA can address. Names
/// are "sm90.256x128.w2x1.c1.b1": columns and rows of a tile, warpgroups along its columns and
/// depth, blocks that share a tile, blocks to a multiprocessor.
const WeightOnlyPlanner& weight_only_planner();

/// By kernels/attention/warpgroup_*.h: more than some rows.
const AttentionPlanner& attention_planner();

}  // namespace octofold::plan::sm90
