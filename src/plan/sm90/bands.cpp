#include "plan/sm90/bands.h"

#include <algorithm>

#include "plan/sm90/cost.h"

namespace octofold::plan::sm90 {
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
