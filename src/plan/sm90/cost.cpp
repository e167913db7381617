#include "plan/sm90/cost.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/group_walk.h"
#include "kernels/shared/tile_schedule.h"

namespace octofold::plan::sm90 {
namespace {

using config::Sm90GemmConfig;

// Fitted to 14 000 times of 59 configurations at 496 shapes on an H200
// (docs/kernels/gemm-tilings.md, "How a tiling is chosen"; bench/gpu/run.py gemm measures them).
constexpr double kMemoryBytes = 4.19e6;      // a µs
constexpr double kCacheBytes = 11.6e6;       // a µs, from L2 to all multiprocessors
constexpr double kCacheShareOfFew = 0.51;    // of it, where few multiprocessors ask
constexpr double kCrowding = 0.54;           // of the work, for each block more to a multiprocessor
constexpr double kOverlap = 3.07;            // 1: one after another; large: all at once
constexpr double kLaterWaveOfSlices = 3.89;  // µs: these blocks do not stay
constexpr double kLastTile = 0.3;            // of a slow store, which no other stage hides

// If TMA adds in memory, L2 takes so much longer for what is read and written: 2.45 TB/s, measured
// with 32 groups of 256 of K.
constexpr double kAddedBytes = 1.7;

// µs of a stage. If each element has a factor of its own, the FP32 units have twice the work: that
// takes so long for 1024 elements, and more if warpgroups of wide tiles wait ahead for half the
// products. Fitted to 43 random problems of groups of K (docs/notes/experts.md, "Along K").
double stage_microseconds(const Sm90GemmConfig& config, const Tiling& tiling) {
  constexpr double kFactorsOf1024 = 0.0268, kWaitingAhead = 1.15;
  const double stage = 1e-3 * tiling.cost.stage_nanoseconds;
  if (!config.promote()) return 0.98 * stage;
  const bool factors_differ = config.columns().scales == Granularity::kBlock1x128 &&
                              config.rows().scales == Granularity::kBlock1x128;
  if (!factors_differ) return stage;
  const bool waits = config.wait_ahead && config.tile_columns >= 128;
  const double units = config.tile_rows * config.tile_columns / 1024.0;
  return std::max(1.2 * stage, (waits ? kWaitingAhead : 1) * kFactorsOf1024 * units);
}

// With rows of A in groups: work and memory overlap less, a tile takes more µs, and a stage so many
// times as long. Fitted to times of 17 kinds of groups (docs/notes/experts.md, "Who walks over
// groups"), of equal sizes, of 0.7 to 1.3 of the mean, and of a Zipf distribution.
constexpr double kOverlapOfGroups = 2.7;
constexpr double kTileOfGroups = 0.2;

double stage_factor_of_groups(const Sm90GemmConfig& config) {
  if (config.order == config::ConsumerOrder::kPingPong) return 1.01;
  return config.wait_ahead ? 1.03 : 1.12;
}

// Memory takes so many times as long, too: for tiles of groups, and, where operands are swapped,
// for each further block of a multiprocessor. Fitted to 67 random problems of groups of 1 to 4096
// rows.
double memory_factor_of_groups(const Sm90GemmConfig& config, int sharers) {
  if (!config::groups_rows(config.work)) return 1;
  return config.swapped ? 1 + 0.07 * (sharers - 1) : 1.25;
}

// µs until the first tile has been found among groups, as fitted to the same problems. That 64×64
// take no longer than without groups is not understood.
double start_of_groups(const Sm90GemmConfig& config) {
  if (!config::groups_rows(config.work)) return 0;
  return config.swapped ? 0.6 : config.tile_rows > 64 ? 1.0 : 0;
}

// µs for 64×64 elements that are added to C after the products, as reckoned: where C lies in shared
// memory, and where threads read it and wait for memory.
constexpr double kOntoC = 0.25;
constexpr double kReadC = 0.6;

// If warps copy slabs, a tile takes this besides what its elements take.
constexpr double kTileOfCopies = 0.5;

double tile_microseconds(const Sm90GemmConfig& config, const Tiling& tiling) {
  if (config.store == config::OutputStore::kSlabs) return kTileOfCopies;
  return 1e-3 * tiling.cost.tile_nanoseconds;
}

// µs for 64×64 elements that warps copy in slabs. Of three warpgroups one copies while others
// multiply. Measured at 11 problems of odd N (docs/notes/products.md, "Results that TMA cannot
// address").
double copied_slab_microseconds(const Sm90GemmConfig& config) {
  const double each = config.form.out == DType::kFloat32 ? 1.35 : 0.75;
  return config.consumer_warpgroups == 3 ? 0.85 * each : each;
}

// µs for 64×64 elements of a dense product's FP32 that TMA stores, as a whole tile or in slabs; so
// much of the last tile's is not hidden. Fitted to 58 random problems (docs/notes/products.md,
// "Sums in FP32").
constexpr double kWhole = 0.465, kInSlabs = 0.28, kLastOfFloat32 = 0.9;

bool stores_float32(const Sm90GemmConfig& config) {
  return config.work == config::Work::kDense && config.form.out == DType::kFloat32 &&
         config::by_tma(config.store) && !config.reads_c() && !config.adds_in_place;
}

// µs for 64×64 elements of a tile, besides what tiles of 16 bits take that leave by TMA as a whole.
// Blocks of one multiprocessor, `sharers`, copy slabs in turns.
double store_microseconds(const Sm90GemmConfig& config, int sharers) {
  switch (config.store) {
    case config::OutputStore::kTma: return stores_float32(config) ? kWhole : 0;
    case config::OutputStore::kTmaPrefetchedC: return kOntoC;
    case config::OutputStore::kTmaSlabs:
      if (stores_float32(config)) return kInSlabs;
      return config.form.out == DType::kFloat32 ? 0.35 : 0;
    case config::OutputStore::kSlabs: return sharers * copied_slab_microseconds(config);
    case config::OutputStore::kDirect: return 0.61;
  }
  return 0;
}

// µs for a row of a stage that threads copy.
double row_microseconds(const Sm90GemmConfig& config) {
  switch (config.load) {
    case config::OperandLoad::kTma: return 0;
    case config::OperandLoad::kWords: return 0.0085;
    case config::OperandLoad::kThreads: return 0.013;
  }
  return 0;
}

// µs that a stage takes whose A is cast, and each of its rows: fitted to 58 random problems of up
// to 16 rows. Blocks of one multiprocessor hide half of that behind one another.
constexpr double kCastStage = 0.1, kCastRow = 0.01, kCastCrowding = 0.5;

// µs for a tile of few stages in a group of K, where rows have scales along K and columns have
// factors: measured with 512 of K to a group (docs/notes/experts.md). Tiles of 192×128, either way,
// take twice as long; why is not known.
double short_tile_microseconds(const GemmProblem& problem, const Sm90GemmConfig& config,
                               double stages) {
  constexpr double kFewStages = 8, kEach = 0.9;
  const bool waits = problem.work == config::Work::kGroupedDepth && stages <= kFewStages &&
                     varies_along_k(config.rows().scales) &&
                     config.columns().scales == Granularity::kChannel;
  if (!waits) return 0;
  return config.tile_rows * config.tile_columns == 192 * 128 ? 2 * kEach : kEach;
}

// The factor by which L2 reads more where TMA's rows of 128 bytes begin at no line, or no sector.
double misalignment(std::int64_t k) {
  if (k % 128 == 0) return 1;
  if (k % 64 == 0) return 1.10;
  return k % 32 == 0 ? 1.18 : 1.66;
}

// The bytes of an element of A.
double bytes_of_a(const GemmProblem& problem) {
  return problem.dynamic.exists ? size_of(problem.dynamic.type) : 1;
}

// The bytes of all groups together.
double bytes_of_memory(const GemmProblem& problem, const Sm90GemmConfig& config) {
  const auto [m, n, k] = expected_group(problem);
  double out = size_of(problem.product.form.out);
  if (problem.product.form.c != Addend::kNone) out *= 2;
  if (config.adds_in_place) out *= kAddedBytes;
  const std::int64_t b_rows = problem.gated.exists ? 2 * n : n;
  return static_cast<double>(problem.groups) *
         ((static_cast<double>(m) * bytes_of_a(problem) + static_cast<double>(b_rows)) *
              static_cast<double>(k) +
          out * static_cast<double>(m) * static_cast<double>(n));
}

// Multiprocessors that clusters of so many blocks can be on. Clusters lie within groups of
// multiprocessors, of which some have an odd number: 39 of three blocks and 30 of four run at one
// time on 132. Reckoned are 31 of four, as costs were fitted: with 30 they predict less well, and
// blocks that share a tile do not stay for others.
int multiprocessors_of_clusters(int size, const Gpu& gpu) {
  const int left_over = size == 3 ? 15 : size == 4 ? 8 : size == 8 ? 20 : 0;
  return std::max(gpu.multiprocessors - left_over, 1);
}

}  // namespace

int clusters_at_once(int size, int blocks_per_multiprocessor, const Gpu& gpu) {
  const int held = multiprocessors_of_clusters(size, gpu) * blocks_per_multiprocessor;
  return std::max(held / size, 1);
}

config::TileSchedule cluster_tiles(const GemmProblem& problem, const Sm90GemmConfig& config) {
  const GroupSizes group = expected_group(problem);
  const auto m = static_cast<int>(group.m), n = static_cast<int>(group.n);
  return config::tile_schedule(config.swapped ? n : m, config.swapped ? m : n,
                               config.cluster_tile_rows(), config.cluster_tile_columns());
}

namespace {

// Rows of groups are expected to be so many times as many as on average, each time of as many
// groups: the host does not know them, and a tiling that fits the average alone is bad for most.
constexpr double kGroupSizes[] = {0.7, 0.85, 1, 1.15, 1.3};

// A group's rows at one of these sizes; one group alone has what is expected.
int rows_of_size(const GemmProblem& problem, double size) {
  const auto m = static_cast<double>(expected_group(problem).m);
  const auto rows = std::max(std::lround(problem.groups > 1 ? size * m : m), 1L);
  return static_cast<int>(std::min<std::int64_t>(rows, problem.product.m));
}

// The work of a tile that is not whole, in whole ones. Three warpgroups in turn wait for each other
// all the same, and one that waits ahead for half the products hides less. Fitted as
// kOverlapOfGroups, and to masked groups.
double work_of_last(const Sm90GemmConfig& config, int rows) {
  constexpr double kOfThreeInTurn = 2, kOfHalf = 1.8;
  const bool in_turn = config.order == config::ConsumerOrder::kPingPong;
  const bool is_half = config.row_sub_tiles() == 2;
  const double each = in_turn && !is_half            ? kOfThreeInTurn
                      : config.wait_ahead && is_half ? kOfHalf
                                                     : 1;
  const int of_block = std::min(rows, config.tile_rows);  // the first one's in a cluster
  const double sub_tiles = config::ceil_divide(of_block, config.row_unit());
  return std::min(each * sub_tiles * config.row_unit() / config.tile_rows, 1.0);
}

// Tiles of clusters in all groups together.
struct ClusterTiles {
  int columns = 0;        // of tiles
  double whole_rows = 0;  // of whole tiles, one below another
  double last_rows = 0;   // of tiles that are not, whose work is so many whole ones'
  double last_rows_work = 0;

  double rows() const { return whole_rows + last_rows; }
  double count() const { return columns * rows(); }
  // The tiles of the cluster with most to do, in whole tiles.
  double most_of_one(int clusters) const;
};

double ClusterTiles::most_of_one(int clusters) const {
  const double whole = std::ceil(columns * whole_rows), last = std::ceil(columns * last_rows);
  const double each_last = last_rows > 0 ? last_rows_work / last_rows : 0;
  const auto of_cluster = [&](double all, int first) {
    return std::ceil(std::max(all - first, 0.0) / clusters);
  };
  double most = 0;
  for (int cluster = 0; cluster < clusters; ++cluster) {
    const double lasts = of_cluster(last, config::first_last_tile(cluster, clusters));
    most = std::max(most, of_cluster(whole, cluster) + lasts * each_last);
  }
  return most;
}

ClusterTiles tiles_of_all(const GemmProblem& problem, const Sm90GemmConfig& config) {
  const config::TileSchedule expected = cluster_tiles(problem, config);
  const auto groups = static_cast<double>(problem.groups);
  const bool in_groups = config::groups_rows(problem.work);
  ClusterTiles tiles{.columns = config.swapped ? expected.tiles_m : expected.tiles_n};
  if (!in_groups) {
    tiles.whole_rows = groups * (config.swapped ? expected.tiles_n : expected.tiles_m);
    return tiles;
  }
  const int tile = config.cluster_tile_rows(), unit = config.row_unit();
  for (const double size : kGroupSizes) {
    const double each = groups / std::size(kGroupSizes);
    const int rows = rows_of_size(problem, size);
    if (config.swapped) {
      tiles.whole_rows += each * config::ceil_divide(rows, config.cluster_tile_columns());
      continue;
    }
    const int whole = config::whole_tile_rows(rows, tile, unit);
    tiles.whole_rows += each * (whole / tile);
    if (whole >= rows) continue;
    tiles.last_rows += each;
    tiles.last_rows_work += each * work_of_last(config, rows - whole);
  }
  return tiles;
}

// Few rows of A leave blocks nothing to do but wait for B, and then times are as if their places
// decided: as if two blocks of one multiprocessor, or of two that share a way to L2, got no more
// than one alone, and some multiprocessors were full while others had room. They depend on how many
// blocks one may hold, and on how many there are to each.
struct Share {
  double above;  // for more blocks than so many to a multiprocessor
  double level;  // the time of the busiest one, in that of one block to each at full bandwidth
};

// Fitted to the times of 30 tilings of few rows at 168 random problems on H200s
// (docs/notes/products.md, "Where blocks lie").
constexpr Share kOfOneBlock[] = {{0, 0.37}, {0.5, 0.8}, {1, 1.31}, {1.5, 1.32}, {2.2, 1.86}};
constexpr Share kOfTwo[] = {{0, 0.4}, {0.5, 0.65}, {0.667, 0.95}, {1, 1.56}, {1.5, 1.71}, {2, 2}};
constexpr Share kOfThree[] = {{0, 0.45}, {0.5, 0.75}, {0.77, 0.99},
                              {1, 1.38}, {1.5, 2.36}, {2.35, 2.46}};
constexpr Share kOfFour[] = {{0, 0.48},    {0.5, 0.78}, {0.77, 0.93}, {1, 1.24},
                             {1.35, 1.83}, {2, 2.45},   {2.25, 3.1}};
constexpr std::span<const Share> kShares[] = {kOfOneBlock, kOfTwo, kOfThree, kOfFour};

// How many times as long the busiest multiprocessor waits for memory as if all had the same share.
double unevenness(const Sm90GemmConfig& config, double clusters, const Gpu& gpu) {
  if (!config.swapped) return 1;
  const std::span<const Share> shares = kShares[config.blocks_per_multiprocessor - 1];
  const double blocks = clusters * config.cluster_size();
  const double to_each = blocks / multiprocessors_of_clusters(config.cluster_size(), gpu);
  const auto after = std::ranges::lower_bound(shares, to_each, {}, &Share::above);
  return std::max(std::prev(after)->level * gpu.multiprocessors / blocks, 1.0);
}

// The bytes that all blocks together take from L2 for a stage. Absent rows are not read, but in a
// box that several blocks share.
double bytes_of_stage(const GemmProblem& problem, const Sm90GemmConfig& config,
                      const ClusterTiles& tiles) {
  const GroupSizes group = expected_group(problem);
  const auto groups = static_cast<double>(problem.groups);
  const double along_m = config.swapped ? tiles.columns * groups : tiles.rows();
  const double along_n = config.swapped ? tiles.rows() / groups : tiles.columns;
  const auto existing = static_cast<int>(config.swapped ? group.n : group.m);
  const double rows = config.cluster_columns == 1 ? groups * config::round_up(existing, 8)
                                                  : along_m * config.cluster_tile_rows();
  // Rows of an A that is cast are read where they exist.
  const double columns = config.dynamic.exists
                             ? static_cast<double>(group.m) * bytes_of_a(problem)
                             : along_n * config.cluster_columns * config.operand_columns();
  return config::kStageDepth * config.split_k * (rows * along_n + columns * along_m);
}

}  // namespace

double predicted_microseconds(const GemmProblem& problem, const Sm90GemmConfig& config,
                              const Tiling& tiling, const Gpu& gpu) {
  const ClusterTiles tiles = tiles_of_all(problem, config);
  const int at_once =
      clusters_at_once(config.cluster_size(), config.blocks_per_multiprocessor, gpu);
  const auto running = static_cast<int>(std::min(std::ceil(tiles.count()), 1.0 * at_once));
  const double waves = tiles.most_of_one(at_once);
  const int sharers = config::ceil_divide(running * config.blocks_per_multiprocessor,
                                          at_once);  // blocks of one multiprocessor
  const auto stages = static_cast<double>(
      config::ceil_divide(config::ceil_divide(expected_group(problem).k, config::kStageDepth),
                          std::int64_t{config.split_k}));

  const bool in_groups = config::groups_rows(problem.work) && !config.swapped;
  double stage =
      stage_microseconds(config, tiling) * (in_groups ? stage_factor_of_groups(config) : 1);
  stage = std::max(stage,
                   sharers * (config.tile_rows + config.tile_columns) * row_microseconds(config));
  double crowded_stage = stage * (1 + kCrowding * (sharers - 1));
  if (config.dynamic.exists) {
    const double cast = kCastStage + config.tile_columns * kCastRow;
    crowded_stage = std::max(crowded_stage, (1 + kCastCrowding * (sharers - 1)) * cast);
  }
  const double area = config.tile_rows * config.tile_columns / 4096.0;
  const double store =
      area * (store_microseconds(config, sharers) + (config.reads_c() ? kReadC : 0));
  const double tile = tile_microseconds(config, tiling) + (in_groups ? kTileOfGroups : 0) + store +
                      short_tile_microseconds(problem, config, stages);
  const double work = waves * stages * crowded_stage +
                      std::max(waves - 1, 0.0) * (config.split_k > 1 ? kLaterWaveOfSlices : tile);
  const double memory = unevenness(config, std::ceil(tiles.count()), gpu) *
                        memory_factor_of_groups(config, sharers) *
                        bytes_of_memory(problem, config) / kMemoryBytes;
  const double busy =
      std::min(1.0, static_cast<double>(running) * config.cluster_size() / gpu.multiprocessors);
  const double cache = misalignment(problem.product.k) * stages *
                       bytes_of_stage(problem, config, tiles) / kCacheBytes /
                       (kCacheShareOfFew + (1 - kCacheShareOfFew) * busy);
  const double overlap = in_groups ? kOverlapOfGroups : kOverlap;
  const double body = std::pow(
      std::pow(work, overlap) + std::pow(memory, overlap) + std::pow(cache, overlap), 1 / overlap);
  return 1e-3 * tiling.cost.start_nanoseconds + start_of_groups(config) + body +
         (stores_float32(config) ? kLastOfFloat32 : kLastTile) * store;
}

namespace {

// Fitted to times of six orders at 16 problems and tilings on an H200: what is chosen takes 0.1 %
// more than the fastest of them in the mean, 0.4 % at most (docs/notes/gemm-sm90.md). From 25 to
// 40 MB and from 1.1 to 1.3 they choose nearly alike.
constexpr double kHotBytes = 40e6;      // what L2 keeps until it is read again
constexpr double kSharedStreams = 1.2;  // blocks that share what streams all wait for memory

constexpr config::TileBands kBands[] = {
    {}, {.width = 16}, {.of_columns = true}, {.of_columns = true, .width = 16}};

// In tiles of clusters.
struct Operand {
  double bytes;
  double tile_bytes;
  int tiles;
  bool is_shared;  // by the blocks of a cluster
};

// Bytes of A and B that come from memory if `banded` is cut into bands, along which `streams`
// passes, once for each. Of the first, a band is read again by each wave of clusters.
double bytes_read(const Operand& banded, const Operand& streams, double out_bytes, int most,
                  double clusters) {
  const int width = std::min(most, banded.tiles);
  const int bands = config::ceil_divide(banded.tiles, width);
  const double waves = std::max(static_cast<double>(banded.tiles) * streams.tiles / clusters, 1.0);
  const double band = width * banded.tile_bytes;
  const double of_wave = band + clusters / width * streams.tile_bytes + out_bytes / waves;
  const double of_band = band + streams.bytes + out_bytes / bands;
  const double again = of_wave <= kHotBytes ? banded.bytes : waves * band;
  const double streamed = (of_band <= kHotBytes ? 1 : bands) * streams.bytes;
  return (streams.is_shared ? kSharedStreams : 1) * (std::max(banded.bytes, again) + streamed);
}

}  // namespace

config::TileBands bands_of(const config::Sm90GemmConfig& config, const config::WorkParams& work,
                           const Gpu& gpu) {
  // With swapped operands there are few tiles in a row; others have walks of their own.
  if (config.work != config::Work::kDense || config.swapped || config.split_k > 1) return {};
  const auto operand = [&](int rows, int tile_rows, int parts, int sharers) {
    const double row_bytes = static_cast<double>(parts) * work.depth;
    return Operand{.bytes = rows * row_bytes,
                   .tile_bytes = tile_rows * row_bytes,
                   .tiles = config::ceil_divide(rows, tile_rows),
                   .is_shared = sharers > 1};
  };
  const int parts = config.operand_columns() / config.tile_columns;  // gates and ups
  const Operand a = operand(work.rows, config.cluster_tile_rows(), 1, config.cluster_columns);
  const Operand b =
      operand(work.columns, config.cluster_tile_columns(), parts, config.cluster_rows);
  const double out_bytes = static_cast<double>(size_of(config.form.out)) * work.rows * work.columns;
  const int clusters =
      clusters_at_once(config.cluster_size(), config.blocks_per_multiprocessor, gpu);
  const auto cost = [&](const config::TileBands& bands) {
    return bands.of_columns ? bytes_read(b, a, out_bytes, bands.width, clusters)
                            : bytes_read(a, b, out_bytes, bands.width, clusters);
  };
  return *std::ranges::min_element(kBands, {}, cost);
}

}  // namespace octofold::plan::sm90
