// Planners for GPUs whose warps multiply by themselves: any GPU, and FP8 itself on 8.9 and 12.x.
#pragma once

#include <vector>

#include "plan/attention.h"
#include "plan/product.h"
#include "plan/weight_only.h"

namespace octofold::plan::mma {

/// By kernels/mma. Names are "128x128.w2x4.b1": the tile, warps along its rows and columns, blocks
/// to a multiprocessor.
const ProductPlanner& product_planner();

/// By kernels/weight_only. Names are "64x16.w2x1x4.s3.k2": columns and rows of a tile, warps along
/// its columns, rows and depth, stages, and how many blocks share the depth.
const WeightOnlyPlanner& weight_only_planner();

/// By kernels/attention.
const AttentionPlanner& attention_planner();

/// The ways to carry out a product with FP8 weights that fit into the GPU's shared memory.
std::vector<WeightOnlyWork> warp_weight_only_candidates(const WeightOnlyProblem& problem,
                                                        const Gpu& gpu);

}  // namespace octofold::plan::mma
