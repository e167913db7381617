#include "plan/gemm_cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/config/arithmetic.h"
#include "kernels/config/tile_schedule.h"

namespace octofold::plan {
namespace {

using config::Sm90GemmConfig;

// Fitted to 15 000 times of 50 configurations at 449 shapes on an H200 (docs/kernels.md, "How a
// tiling is chosen"; tests/gpu/measure_candidates.py measures them).
constexpr double kStart = 2.39;                         // µs, launch and first bytes
constexpr double kMemoryBytes = 3.97e6;                 // a µs
constexpr double kCacheBytes = 11.2e6;                  // a µs, from L2 to all multiprocessors
constexpr double kCacheShareOfFew = 0.48;               // of it, where few multiprocessors ask
constexpr double kStageOf64x64 = 0.048;                 // µs of a multiprocessor's tensor core
constexpr double kCrowding = 0.33;                      // of the work, for each block more
constexpr double kOverlap = 3.9;                        // 1: one after another; large: all at once
constexpr double kLaterWaveOfSlices = 2.77;             // µs: these blocks do not stay
constexpr double kMulticast = 0.82;                     // µs
constexpr double kSlices[] = {0, 0, 0.09, 0.18, 0.28};  // µs, by depth
constexpr double kSlicesOf64x64 = 0.78;                 // µs for the sums, but a block's own
constexpr double kLastTile = 0.3;                       // of a tile, which no other stage hides

// Factors of a stage's time. Where each element has a factor of its own, a second operation is
// hidden by the products only if there are registers for the factors.
double stage_factor(const Sm90GemmConfig& config) {
  if (!config.promote()) return 0.9;
  const bool factors_differ = config.columns().scales == Granularity::kBlock1x128 &&
                              config.rows().scales == Granularity::kBlock1x128;
  if (!factors_differ) return 1.0;
  return config.early_wait && config.tile_rows == 128 && config.tile_columns == 96 ? 1.4 : 1.75;
}

// µs for 64×64 elements of a tile that does not leave by TMA as a whole.
double store_microseconds(const Sm90GemmConfig& config) {
  switch (config.store) {
    case config::OutputStore::kTma: return 0;
    case config::OutputStore::kTmaPieces: return 0.35;
    case config::OutputStore::kDirect: return 0.61;
  }
  return 0;
}

// µs for a row of a stage that threads copy.
constexpr double kCopiedRow = 0.003;

// What L2 reads more for TMA's rows of 128 bytes where they do not begin with a line, or a sector.
double misalignment(std::int64_t k) { return k % 128 == 0 ? 1 : k % 32 == 0 ? 1.18 : 1.62; }

double bytes_of_memory(const GemmProblem& problem) {
  const auto& [m, n, k, form] = problem.product;
  double out = size_of(form.out);
  if (form.c != Addend::kNone) out *= 2;
  return static_cast<double>(m + n) * static_cast<double>(k) +
         out * static_cast<double>(m) * static_cast<double>(n);
}

}  // namespace

int clusters_at_once(const Sm90GemmConfig& config, const Gpu& gpu) {
  // Clusters lie within groups of multiprocessors, of which some have an odd number: 39 of three
  // blocks and 30 of four run at one time on 132.
  const int size = config.cluster_size();
  const int left_over = size == 3 ? 15 : size == 4 ? 8 : 0;
  return std::max((gpu.multiprocessors - left_over) * config.blocks_per_multiprocessor / size, 1);
}

int clusters_of_tiles(const GemmProblem& problem, const Sm90GemmConfig& config) {
  const auto m = static_cast<int>(problem.product.m), n = static_cast<int>(problem.product.n);
  return config::tile_schedule(config.swapped ? n : m, config.swapped ? m : n,
                               config.cluster_tile_rows(), config.cluster_tile_columns(),
                               config.raster_rows)
      .count();
}

double predicted_microseconds(const GemmProblem& problem, const Sm90GemmConfig& config,
                              const Tiling& tiling, const Gpu& gpu) {
  const int clusters = clusters_of_tiles(problem, config);
  const int at_once = clusters_at_once(config, gpu);
  const int waves = config::ceil_divide(clusters, at_once);
  const int blocks = std::min(clusters, at_once) * config.cluster_size();
  const int sharers =
      std::min(config::ceil_divide(blocks, gpu.multiprocessors), config.blocks_per_multiprocessor);
  const auto stages = static_cast<double>(
      config::ceil_divide(config::ceil_divide(problem.product.k, config::kStageDepth),
                          std::int64_t{config.cluster_depth}));
  const double area = config.tile_rows * config.tile_columns / 4096.0;
  const bool in_slices = config.cluster_depth > 1;

  double stage = std::max(1e-3 * tiling.stage_nanoseconds * stage_factor(config),
                          sharers * area * kStageOf64x64);
  if (config.load == config::OperandLoad::kThreads) {
    stage = std::max(stage, sharers * (config.tile_rows + config.tile_columns) * kCopiedRow);
  }
  const double tile = 1e-3 * tiling.tile_nanoseconds + area * store_microseconds(config);
  const double work = waves * stages * stage * (1 + kCrowding * (sharers - 1)) +
                      (waves - 1) * (in_slices ? kLaterWaveOfSlices : tile);
  const double memory = bytes_of_memory(problem) / kMemoryBytes;
  const double stage_bytes =
      config::kStageDepth * (static_cast<double>(config.tile_rows) / config.cluster_columns +
                             static_cast<double>(config.tile_columns) / config.cluster_rows);
  const double busy = std::min(1.0, static_cast<double>(blocks) / gpu.multiprocessors);
  const double cache = misalignment(problem.product.k) * clusters * config.cluster_size() * stages *
                       stage_bytes / kCacheBytes /
                       (kCacheShareOfFew + (1 - kCacheShareOfFew) * busy);

  const double body =
      std::pow(std::pow(work, kOverlap) + std::pow(memory, kOverlap) + std::pow(cache, kOverlap),
               1 / kOverlap);
  const double slices =
      !in_slices ? 0
                 : kSlices[config.cluster_depth] +
                       kSlicesOf64x64 * area * (config.cluster_depth - 1) / config.cluster_depth;
  const bool multicasts = config.cluster_rows * config.cluster_columns > 1;
  return kStart + body + kLastTile * tile + slices + (multicasts ? kMulticast : 0);
}

}  // namespace octofold::plan
