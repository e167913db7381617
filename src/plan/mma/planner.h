// Dense products on GPUs that multiply FP8 by warps, not by warpgroups: 8.9 and 12.x. By
// kernels/mma.
#pragma once

#include "plan/product_planner.h"

namespace octofold::plan::mma {

/// Names are "128x128.w2x4.b1": the tile, warps along its rows and columns, blocks to a
/// multiprocessor.
const ProductPlanner& planner();

}  // namespace octofold::plan::mma
