#include "plan/gemm_tilings.h"

#include <vector>

namespace octofold::plan {
namespace {

using config::MathOrder;
using enum config::MathOrder;

// Tiles of A's rows and B's: for 100 rows and more.
struct Straight {
  int rows, columns, math_warpgroups;
  struct {
    int rows, columns, depth;
  } cluster;
  MathOrder order;
  bool early_wait;
  int stage_nanoseconds, tile_nanoseconds;
  int blocks = 1;  // to a multiprocessor
};
constexpr Straight kStraight[] = {
    {256, 128, 2, {1, 2, 1}, kFree, true, 766, 1406},
    {256, 128, 2, {1, 1, 1}, kFree, true, 705, 1969},
    {256, 128, 2, {1, 1, 1}, kFree, false, 721, 1829},
    {256, 128, 2, {1, 2, 1}, kOrdered, false, 766, 900},
    {128, 192, 2, {2, 1, 1}, kFree, true, 533, 1167},
    {128, 192, 2, {2, 1, 1}, kOrdered, false, 549, 792},
    {192, 128, 3, {1, 2, 1}, kOrdered, false, 549, 713},
    {192, 128, 3, {1, 1, 1}, kOrdered, false, 514, 788},
    {192, 128, 3, {1, 1, 2}, kFree, false, 524, 2161},
    {192, 96, 3, {1, 1, 1}, kOrdered, false, 403, 730},
    {192, 64, 3, {1, 1, 1}, kFree, true, 258, 672},
    {192, 64, 3, {1, 1, 2}, kFree, true, 258, 672},
    {128, 160, 2, {1, 1, 1}, kFree, true, 427, 812},
    {128, 128, 2, {1, 2, 1}, kFree, true, 379, 582},
    {128, 128, 2, {2, 1, 1}, kFree, true, 385, 587},
    {128, 128, 2, {1, 1, 1}, kFree, true, 327, 821},
    {128, 128, 2, {1, 1, 2}, kFree, true, 327, 821},
    {128, 128, 2, {1, 1, 1}, kOrdered, false, 345, 700},
    {128, 128, 2, {2, 1, 1}, kOrdered, false, 395, 587},
    {128, 96, 2, {1, 1, 1}, kAlternating, false, 274, 724},
    {128, 96, 2, {1, 1, 1}, kFree, true, 285, 800},
    {128, 96, 2, {1, 1, 1}, kOrdered, false, 290, 700},
    {128, 96, 2, {1, 1, 2}, kAlternating, false, 274, 724},
    {128, 64, 2, {1, 1, 1}, kFree, true, 161, 459},
    {128, 64, 2, {1, 1, 2}, kFree, true, 161, 459},
    {64, 64, 1, {1, 1, 1}, kAlternating, false, 131, 264},
    {64, 64, 1, {1, 1, 2}, kAlternating, false, 131, 264},
    {64, 64, 1, {1, 1, 1}, kAlternating, false, 131, 264, 2},
    {64, 64, 1, {1, 1, 2}, kAlternating, false, 131, 264, 2},
    // Without promotion the sums leave room for more columns.
    {128, 176, 2, {1, 1, 1}, kFree, false, 480, 1200},
    {128, 256, 2, {2, 1, 1}, kFree, false, 720, 1800},
    {128, 256, 2, {1, 1, 1}, kFree, false, 700, 1900},
};

// 64 rows of B and few of A. Which of them is best is a question of how many such tiles fill the
// multiprocessors once: slices of K, and blocks to a multiprocessor.
struct Filling {
  int depth, blocks;
};
struct Swapped {
  int columns;
  std::span<const Filling> fillings;
  int stage_nanoseconds, tile_nanoseconds;  // one stage after another
  int alternating_stage_nanoseconds, alternating_tile_nanoseconds;
};
constexpr Filling kOfFew[] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}, {2, 3}, {4, 3}};
constexpr Filling kOfMore[] = {{1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}, {3, 1}};
constexpr Filling kOf64[] = {{1, 2}, {1, 3}, {3, 3}};

constexpr Swapped kSwapped[] = {
    {8, kOfFew, 100, 132, 0, 0},       {16, kOfFew, 112, 151, 0, 0},
    {32, kOfMore, 198, 472, 141, 403}, {48, kOfMore, 228, 583, 170, 663},
    {64, kOf64, 275, 646, 224, 590},
};

std::vector<Tiling> all_tilings() {
  std::vector<Tiling> all;
  for (const Straight& straight : kStraight) {
    all.push_back({.rows = straight.rows,
                   .columns = straight.columns,
                   .math_warpgroups = straight.math_warpgroups,
                   .cluster_rows = straight.cluster.rows,
                   .cluster_columns = straight.cluster.columns,
                   .cluster_depth = straight.cluster.depth,
                   .blocks_per_multiprocessor = straight.blocks,
                   .order = straight.order,
                   .early_wait = straight.early_wait,
                   .stage_nanoseconds = straight.stage_nanoseconds,
                   .tile_nanoseconds = straight.tile_nanoseconds});
  }
  for (const Swapped& swapped : kSwapped) {
    for (const auto& [depth, blocks] : swapped.fillings) {
      // Where several blocks take turns on a multiprocessor none needs to overlap its own stages.
      const bool alternates = swapped.columns > 16 && blocks <= 2;
      all.push_back({.swapped = true,
                     .rows = 64,
                     .columns = swapped.columns,
                     .math_warpgroups = 1,
                     .cluster_depth = depth,
                     .blocks_per_multiprocessor = blocks,
                     .order = alternates ? kAlternating : MathOrder::kFree,
                     .stage_nanoseconds = alternates ? swapped.alternating_stage_nanoseconds
                                                     : swapped.stage_nanoseconds,
                     .tile_nanoseconds = alternates ? swapped.alternating_tile_nanoseconds
                                                    : swapped.tile_nanoseconds});
    }
  }
  return all;
}

}  // namespace

std::span<const Tiling> tilings() {
  static const std::vector<Tiling> kAll = all_tilings();
  return kAll;
}

}  // namespace octofold::plan
