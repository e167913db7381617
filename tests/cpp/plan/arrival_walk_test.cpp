// The walk over rows that arrive in shards: the very code that the kernel runs.
#include "kernels/shared/arrival_walk.h"

#include "kernels/sm90/config/gemm.h"
#include "support/test.h"

namespace octofold::config {
namespace {

constexpr Sm90GemmConfig arriving(Sm90GemmConfig config) {
  config.work = Work::kArrivingRows;
  return config;
}
constexpr Sm90GemmConfig kAlone =
    arriving({.tile_rows = 64, .tile_columns = 32, .consumer_warpgroups = 1});
constexpr Sm90GemmConfig kAlongRows = arriving({.tile_columns = 192, .cluster_rows = 2});
constexpr Sm90GemmConfig kAlongColumns = arriving({.tile_rows = 256, .cluster_columns = 2});
constexpr Sm90GemmConfig kHigh = arriving({.tile_rows = 192, .consumer_warpgroups = 3});

// Returns the shards that are there when the first `count` of the order are.
std::set<int> shards_of(const WorkParams& work, int count) {
  std::set<int> shards;
  for (int i = 0; i < count; ++i) shards.insert((work.first_shard + i) % work.groups);
  return shards;
}

template <Sm90GemmConfig kConfig>
void walk_block(const WorkParams& work, int block, int blocks, std::vector<int>& times) {
  ArrivedShards arrived;
  TileWalk<kConfig> walk(work, block, blocks);
  for (; walk.has_tile(); walk.advance()) {
    const Tile tile = walk.tile();
    EXPECT_EQ(walk.has_stages(), work.depth > 0);
    EXPECT_EQ(tile.operand_row, tile.row);
    EXPECT_EQ(tile.operand_column, tile.column);
    EXPECT_EQ(tile.row % kConfig.tile_rows, 0);
    EXPECT_EQ(tile.k_end, work.depth);
    int awaited = arrived.shards();
    arrived.require(arrival_order<kConfig>(work), tile.row,
                    [&](int i) { EXPECT_EQ(i, awaited++); });
    EXPECT_EQ(arrived.shards(), awaited);
    EXPECT_LE(awaited, work.groups);
    const std::set<int> there = shards_of(work, awaited);
    const int row_end = std::min(tile.row_end, tile.row + kConfig.tile_rows);
    const int column_end = std::min(tile.column_end, tile.column + kConfig.tile_columns);
    for (int row = tile.row; row < row_end; ++row) {
      ASSERT_TRUE(there.contains(row / work.shard_rows)) << row << " of tile " << tile.row;
      for (int column = tile.column; column < column_end; ++column) {
        ++times[as_size(row) * as_size(work.columns) + as_size(column)];
      }
    }
  }
  EXPECT_FALSE(walk.has_stages());
}

// A shard is awaited for the rows that need it and no others, and not before the bands of rows
// ahead of it are done: at once where bands end with shards.
template <Sm90GemmConfig kConfig>
void expect_order(const WorkParams& work) {
  const ArrivalOrder order = arrival_order<kConfig>(work);
  const int columns = ceil_divide(work.columns, kConfig.cluster_tile_columns());
  const int band = arrival_schedule<kConfig>(work).bands.width;
  const int tiles = work.shard_rows / kConfig.cluster_tile_rows();
  const bool is_even =  // no band has to lie in two shards
      work.shard_rows % kConfig.cluster_tile_rows() == 0 &&
      (tiles <= work.bands.width || tiles % work.bands.width == 0);
  ArrivedShards arrived;
  int most = 0, done = 0;
  for (TileWalk<kConfig> walk(work, 0, kConfig.cluster_size()); walk.has_tile(); walk.advance()) {
    const int begin = walk.tile().row;
    const int end = std::min(begin + kConfig.cluster_tile_rows(), work.rows);
    int needed = 0;
    for (int row = begin; row < end; ++row) {
      const int place = (row / work.shard_rows - work.first_shard + work.groups) % work.groups;
      needed = std::max(needed, place + 1);
    }
    most = std::max(most, needed);
    arrived.require(order, begin, [&](int i) {
      const int before = order.tiles_of(i) - (is_even ? 0 : band - 1);
      EXPECT_GE(done, before * columns) << "shard " << i << " of " << work.groups;
    });
    ASSERT_EQ(arrived.shards(), most) << begin;
    ++done;
  }
}

template <Sm90GemmConfig kConfig>
void expect_each_element_once(int shard_rows, int shards, int columns, TileBands bands = {},
                              int depth = 384) {
  for (int first = 0; first < shards; ++first) {
    SCOPED_TRACE(testing::Message() << shards << " shards of " << shard_rows << " rows from "
                                    << first << " on, " << columns << " columns");
    const std::vector<int> flags(as_size(shards), 1);
    const WorkParams work{.rows = shards * shard_rows,
                          .columns = columns,
                          .depth = depth,
                          .groups = shards,
                          .numbers = flags.data(),
                          .shard_rows = shard_rows,
                          .first_shard = first,
                          .bands = bands};
    expect_order<kConfig>(work);
    for (const int blocks : {2, 6, 132}) {
      std::vector<int> times(as_size(work.rows) * as_size(columns));
      for (int block = 0; block < blocks; ++block) {
        walk_block<kConfig>(work, block, blocks, times);
        if (testing::Test::HasFatalFailure()) return;
      }
      for (const int n : times) ASSERT_EQ(n, 1);
    }
  }
}

void expect_all(int shard_rows, int shards, int columns) {
  expect_each_element_once<kAlone>(shard_rows, shards, columns);
  expect_each_element_once<kAlongRows>(shard_rows, shards, columns);
  expect_each_element_once<kAlongColumns>(shard_rows, shards, columns, {.width = 3});
  expect_each_element_once<kHigh>(shard_rows, shards, columns);
}

TEST(ArrivalWalkTest, EachElementComesOnceAndInTheOrderOfShards) {
  for (const auto& [shard_rows, shards] : {std::pair{1, 1},
                                           {1, 3},
                                           {7, 5},
                                           {64, 4},
                                           {128, 2},
                                           {200, 3},
                                           {256, 4},
                                           {300, 1},
                                           {513, 2}}) {
    for (const int columns : {1, 200, 700}) expect_all(shard_rows, shards, columns);
  }
  expect_each_element_once<kAlone>(200, 3, 100, {}, 0);
}

TEST(ArrivalWalkTest, RandomShards) {
  std::mt19937 random(11);
  const auto up_to = [&](int most) { return std::uniform_int_distribution(1, most)(random); };
  for (int i = 0; i < 20; ++i) {
    const int shards = up_to(9);
    expect_all(up_to(1200 / shards), shards, up_to(300));
  }
}

TEST(ArrivalWalkTest, OneShardIsTheDenseWalk) {
  const int flag = 1;
  const WorkParams work{.rows = 1000,
                        .columns = 700,
                        .depth = 384,
                        .groups = 1,
                        .numbers = &flag,
                        .shard_rows = 1000};
  for (int block = 0; block < 4; ++block) {
    TileWalk<kAlone> walk(work, block, 4);
    TileWalk<kAlone, Work::kDense> dense(work, block, 4);
    for (; dense.has_tile(); dense.advance(), walk.advance()) {
      ASSERT_TRUE(walk.has_tile());
      EXPECT_EQ(walk.tile().row, dense.tile().row);
      EXPECT_EQ(walk.tile().column, dense.tile().column);
    }
    EXPECT_FALSE(walk.has_tile());
  }
}

}  // namespace
}  // namespace octofold::config
