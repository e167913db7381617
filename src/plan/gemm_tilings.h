// The ways to cut a product on Hopper that the planner chooses among.
#pragma once

#include <span>

#include "kernels/config/sm90_gemm.h"

namespace octofold::plan {

/// What of a Sm90GemmConfig is chosen; the rest follows from the problem.
struct Tiling {
  bool swapped = false;
  int rows = 0, columns = 0, math_warpgroups = 0;
  int cluster_rows = 1, cluster_columns = 1, cluster_depth = 1;
  int blocks_per_multiprocessor = 1;
  config::MathOrder order = config::MathOrder::kFree;
  bool early_wait = false;

  /// As measured on an H200 with block scales and BF16 output, with all loads arriving in time: of
  /// one stage of K, and of a tile besides.
  int stage_nanoseconds = 0, tile_nanoseconds = 0;
};

/// All of them. Not from each a kernel can be built for each form.
std::span<const Tiling> tilings();

}  // namespace octofold::plan
