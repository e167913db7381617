#include "plan/sm90/tilings.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "plan/sm90/tiling_costs.h"

namespace octofold::plan::sm90 {
namespace {

using enum config::ConsumerOrder;

// The planner takes the first of those that predict the same.
constexpr Tiling kTilings[] = {
    // Rows of A and of B, as they are: for 30 rows of A and more.
    {.rows = 256,
     .columns = 128,
     .consumer_warpgroups = 2,
     .cluster_columns = 2,
     .wait_ahead = true},
    {.rows = 256, .columns = 128, .consumer_warpgroups = 2, .wait_ahead = true},
    {.rows = 256, .columns = 128, .consumer_warpgroups = 2},
    {.rows = 256,
     .columns = 128,
     .consumer_warpgroups = 2,
     .cluster_columns = 2,
     .order = kPingPong},
    {.rows = 128, .columns = 192, .consumer_warpgroups = 2, .cluster_rows = 2, .wait_ahead = true},
    {.rows = 128, .columns = 192, .consumer_warpgroups = 2, .cluster_rows = 2, .order = kPingPong},
    {.rows = 192,
     .columns = 128,
     .consumer_warpgroups = 3,
     .cluster_columns = 2,
     .order = kPingPong},
    {.rows = 192, .columns = 128, .consumer_warpgroups = 3, .order = kPingPong},
    {.rows = 192, .columns = 128, .consumer_warpgroups = 3, .split_k = 2},
    {.rows = 192, .columns = 96, .consumer_warpgroups = 3, .order = kPingPong},
    {.rows = 192, .columns = 64, .consumer_warpgroups = 3, .wait_ahead = true},
    {.rows = 192, .columns = 64, .consumer_warpgroups = 3, .split_k = 2, .wait_ahead = true},
    {.rows = 128, .columns = 160, .consumer_warpgroups = 2, .wait_ahead = true},
    {.rows = 128,
     .columns = 128,
     .consumer_warpgroups = 2,
     .cluster_columns = 2,
     .wait_ahead = true},
    {.rows = 128, .columns = 128, .consumer_warpgroups = 2, .cluster_rows = 2, .wait_ahead = true},
    {.rows = 128, .columns = 128, .consumer_warpgroups = 2, .wait_ahead = true},
    {.rows = 128, .columns = 128, .consumer_warpgroups = 2, .split_k = 2, .wait_ahead = true},
    {.rows = 128, .columns = 128, .consumer_warpgroups = 2, .order = kPingPong},
    {.rows = 128, .columns = 128, .consumer_warpgroups = 2, .cluster_rows = 2, .order = kPingPong},
    {.rows = 128, .columns = 96, .consumer_warpgroups = 2, .order = kAlternating},
    {.rows = 128, .columns = 96, .consumer_warpgroups = 2, .wait_ahead = true},
    {.rows = 128, .columns = 96, .consumer_warpgroups = 2, .order = kPingPong},
    {.rows = 128, .columns = 96, .consumer_warpgroups = 2, .split_k = 2, .order = kAlternating},
    {.rows = 128, .columns = 64, .consumer_warpgroups = 2, .wait_ahead = true},
    {.rows = 128, .columns = 64, .consumer_warpgroups = 2, .split_k = 2, .wait_ahead = true},
    {.rows = 64, .columns = 64, .order = kAlternating},
    {.rows = 64, .columns = 64, .split_k = 2, .order = kAlternating},
    {.rows = 64, .columns = 64, .blocks_per_multiprocessor = 2, .order = kAlternating},
    {.rows = 64,
     .columns = 64,
     .split_k = 2,
     .blocks_per_multiprocessor = 2,
     .order = kAlternating},
    // The same where the accumulators alone take registers: without promotion, or without scales
    // along K.
    {.rows = 128, .columns = 176, .consumer_warpgroups = 2},
    {.rows = 128, .columns = 256, .consumer_warpgroups = 2, .cluster_rows = 2},
    {.rows = 128, .columns = 256, .consumer_warpgroups = 2},
    // 64 rows of B and few of A. Which of them is best is a question of how many such tiles fill
    // the multiprocessors once: split-K, and blocks to a multiprocessor.
    {.swapped = true, .rows = 64, .columns = 8},
    {.swapped = true, .rows = 64, .columns = 8, .blocks_per_multiprocessor = 2},
    {.swapped = true, .rows = 64, .columns = 8, .blocks_per_multiprocessor = 3},
    {.swapped = true, .rows = 64, .columns = 8, .blocks_per_multiprocessor = 4},
    {.swapped = true, .rows = 64, .columns = 8, .split_k = 2},
    {.swapped = true, .rows = 64, .columns = 8, .split_k = 2, .blocks_per_multiprocessor = 2},
    {.swapped = true, .rows = 64, .columns = 8, .split_k = 2, .blocks_per_multiprocessor = 3},
    {.swapped = true, .rows = 64, .columns = 8, .split_k = 4, .blocks_per_multiprocessor = 3},
    {.swapped = true, .rows = 64, .columns = 16},
    {.swapped = true, .rows = 64, .columns = 16, .blocks_per_multiprocessor = 2},
    {.swapped = true, .rows = 64, .columns = 16, .blocks_per_multiprocessor = 3},
    {.swapped = true, .rows = 64, .columns = 16, .blocks_per_multiprocessor = 4},
    {.swapped = true, .rows = 64, .columns = 16, .split_k = 2},
    {.swapped = true, .rows = 64, .columns = 16, .split_k = 2, .blocks_per_multiprocessor = 2},
    {.swapped = true, .rows = 64, .columns = 16, .split_k = 2, .blocks_per_multiprocessor = 3},
    {.swapped = true, .rows = 64, .columns = 16, .split_k = 4, .blocks_per_multiprocessor = 3},
    {.swapped = true,
     .rows = 64,
     .columns = 32,
     .blocks_per_multiprocessor = 2,
     .order = kAlternating},
    {.swapped = true, .rows = 64, .columns = 32, .blocks_per_multiprocessor = 3},
    {.swapped = true, .rows = 64, .columns = 32, .blocks_per_multiprocessor = 4},
    {.swapped = true, .rows = 64, .columns = 32, .split_k = 2, .order = kAlternating},
    {.swapped = true,
     .rows = 64,
     .columns = 32,
     .split_k = 2,
     .blocks_per_multiprocessor = 2,
     .order = kAlternating},
    {.swapped = true, .rows = 64, .columns = 32, .split_k = 3, .order = kAlternating},
    {.swapped = true,
     .rows = 64,
     .columns = 48,
     .blocks_per_multiprocessor = 2,
     .order = kAlternating},
    {.swapped = true, .rows = 64, .columns = 48, .blocks_per_multiprocessor = 3},
    {.swapped = true, .rows = 64, .columns = 48, .split_k = 2, .order = kAlternating},
    {.swapped = true,
     .rows = 64,
     .columns = 48,
     .split_k = 2,
     .blocks_per_multiprocessor = 2,
     .order = kAlternating},
    {.swapped = true, .rows = 64, .columns = 48, .split_k = 3, .order = kAlternating},
    {.swapped = true,
     .rows = 64,
     .columns = 64,
     .blocks_per_multiprocessor = 2,
     .order = kAlternating},
    {.swapped = true, .rows = 64, .columns = 64, .blocks_per_multiprocessor = 3},
    {.swapped = true, .rows = 64, .columns = 64, .split_k = 3, .blocks_per_multiprocessor = 3},
};

constexpr Tiling kGatedTilings[] = {
    {.rows = 128, .columns = 128, .consumer_warpgroups = 2, .cluster_rows = 2, .wait_ahead = true},
    {.rows = 128, .columns = 128, .consumer_warpgroups = 2, .wait_ahead = true},
};

// Tilings with their costs: one that has none does not compile.
template <std::size_t kCount>
constexpr std::array<Tiling, kCount> with_costs(const Tiling (&tilings)[kCount],
                                                std::span<const NamedCost> costs) {
  std::array<Tiling, kCount> result{};
  for (std::size_t i = 0; i < kCount; ++i) {
    const TilingName name(tilings[i]);
    result[i] = tilings[i];
    result[i].cost = std::ranges::find(costs, name.text(), &NamedCost::name)->cost;
  }
  return result;
}

static_assert(std::size(kTilings) == std::size(kTilingCosts));
static_assert(std::size(kGatedTilings) == std::size(kGatedTilingCosts));
constexpr auto kWithCosts = with_costs(kTilings, kTilingCosts);
constexpr auto kGatedWithCosts = with_costs(kGatedTilings, kGatedTilingCosts);

}  // namespace

std::span<const Tiling> tilings() { return kWithCosts; }
std::span<const Tiling> gated_tilings() { return kGatedWithCosts; }

}  // namespace octofold::plan::sm90
