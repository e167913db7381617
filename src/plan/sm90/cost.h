// The predicted cost of a way to cut a product, and the order of its tiles in which little of A and
// B is read from memory twice.
#pragma once

#include "kernels/shared/tile_schedule.h"
#include "kernels/shared/work.h"
#include "kernels/sm90/config/checks.h"
#include "plan/gpu.h"
#include "plan/product.h"
#include "plan/sm90/tilings.h"

namespace octofold::plan::sm90 {

/// Clusters of so many blocks that run at one time, with so many blocks to a multiprocessor.
int clusters_at_once(int size, int blocks_per_multiprocessor, const Gpu& gpu);

/// The tiles of D that a cluster has at a time: of a group where there are some.
config::TileSchedule cluster_tiles(const GemmProblem& problem,
                                   const config::Sm90GemmConfig& config);

/// Predicted time of the product on a GPU with an H200's clock and memory. Good for comparisons of
/// one problem's configurations.
double predicted_microseconds(const GemmProblem& problem, const config::Sm90GemmConfig& config,
                              const Tiling& tiling, const Gpu& gpu);

/// The bands for this kernel and work, whose own are not looked at. They change no bit of the
/// result.
config::TileBands bands_of(const config::Sm90GemmConfig& config, const config::WorkParams& work,
                           const Gpu& gpu);

}  // namespace octofold::plan::sm90
