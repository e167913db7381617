// How tiles are walked: the orders that were the fastest, or within 0.4 % of it, of six that were
// timed on an H200 (docs/notes/gemm-sm90.md).
#include <limits>

#include "plan/sm90/cost.h"
#include "support/test.h"

namespace octofold::plan::sm90 {
namespace {

using config::Sm90GemmConfig;
using config::TileBands;

constexpr Sm90GemmConfig kSharesRows{.tile_rows = 256, .cluster_columns = 2};
constexpr Sm90GemmConfig kSharesColumns{.tile_columns = 192, .cluster_rows = 2};
constexpr Sm90GemmConfig kAlone{.tile_rows = 256};

std::string bands(const Sm90GemmConfig& config, int m, int n, int k) {
  const TileBands bands = bands_of(config, {.rows = m, .columns = n, .depth = k}, kHopper);
  return core::format("{} {}", bands.width, bands.of_columns ? "columns" : "rows");
}

TEST(BandsTest, WhatStreamsIsReadOnceOrSmall) {
  EXPECT_EQ(bands(kSharesColumns, 4096, 24576, 1536), "8 columns");
  EXPECT_EQ(bands(kSharesColumns, 4096, 32768, 512), "8 columns");
  EXPECT_EQ(bands(kAlone, 4096, 24576, 1536), "16 rows");
  EXPECT_EQ(bands(kSharesRows, 4096, 7168, 2048), "16 rows");
  EXPECT_EQ(bands(kSharesRows, 8192, 28672, 4096), "16 rows");
}

TEST(BandsTest, TheSmallerOperandStaysInCache) {
  EXPECT_EQ(bands(kSharesColumns, 4096, 2112, 7168), "16 columns");
  EXPECT_EQ(bands(kSharesRows, 16384, 4096, 7168), "8 columns");
}

TEST(BandsTest, WhatRunsAtOneTimeIsSquareWhereNothingStays) {
  EXPECT_EQ(bands(kSharesRows, 4096, 4096, 7168), "8 rows");
  EXPECT_EQ(bands(kSharesRows, 4096, 7168, 16384), "8 rows");
  EXPECT_EQ(bands(kAlone, 4096, 4096, 7168), "8 rows");
}

TEST(BandsTest, OtherWalksHaveTheirOwn) {
  const auto of = [](Sm90GemmConfig config) { return bands(config, 4096, 24576, 1536); };
  Sm90GemmConfig config = kSharesColumns;
  config.work = config::Work::kGroupedRows;
  EXPECT_EQ(of(config), "8 rows");
  config.work = config::Work::kArrivingRows;
  EXPECT_EQ(of(config), "8 rows");
  EXPECT_EQ(of({.swapped = true, .tile_rows = 64, .tile_columns = 16, .consumer_warpgroups = 1}),
            "8 rows");
  EXPECT_EQ(of({.tile_columns = 128, .split_k = 2}), "8 rows");
}

TEST(BandsTest, NothingToChoose) {
  EXPECT_EQ(bands(kAlone, 1, 1, 1), "8 rows");
  EXPECT_EQ(bands(kAlone, 300, 300, 0), "8 rows");
  const int most = std::numeric_limits<int>::max() - 127;  // nothing stays in any cache
  EXPECT_EQ(bands(kAlone, most, most, most), "8 rows");
}

}  // namespace
}  // namespace octofold::plan::sm90
