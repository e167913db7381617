// The ways to cut a product on Hopper that the planner chooses among.
#pragma once

#include <span>

#include "kernels/sm90/config/gemm.h"

namespace octofold::plan::sm90 {

/// What of a Sm90GemmConfig is chosen; the rest follows from the problem.
struct Tiling {
  bool swapped;
  int rows, columns, math_warpgroups;
  int cluster_rows, cluster_columns, cluster_depth;
  int blocks_per_multiprocessor;
  config::MathOrder order;
  bool early_wait;

  /// As fitted to times on an H200 with block scales and BF16 output (gemm_cost.h): of one stage of
  /// K with all loads arriving in time, of a tile besides where others follow, and of all that a
  /// product with one tile to a block takes besides its stages.
  int stage_nanoseconds, tile_nanoseconds, start_nanoseconds;
};

/// All of them. Not from each a kernel can be built for each form.
std::span<const Tiling> tilings();

/// Those of gated outputs: columns are H's.
std::span<const Tiling> gated_tilings();

}  // namespace octofold::plan::sm90
