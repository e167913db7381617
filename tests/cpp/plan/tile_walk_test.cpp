// The walks of the blocks over their tiles, of groups and of rows that arrive in shards too: the
// very code that the kernel runs.
#include "kernels/shared/tile_walk.h"

#include "kernels/shared/arrival_walk.h"
#include "kernels/shared/group_walk.h"
#include "kernels/sm90/config/checks.h"
#include "support/test.h"

namespace octofold::config {
namespace {

TEST(TileScheduleTest, EachTileComesOnce) {
  for (int tiles_m = 1; tiles_m <= 20; ++tiles_m) {
    for (int tiles_n = 1; tiles_n <= 20; ++tiles_n) {
      for (const int width : {1, 2, 3, 8, 16}) {
        for (const bool of_columns : {false, true}) {
          const TileSchedule schedule{tiles_m, tiles_n, {of_columns, width}};
          std::set<std::pair<int, int>> seen;
          for (int i = 0; i < schedule.count(); ++i) {
            const TileCoordinate tile = schedule.at(i);
            ASSERT_TRUE(tile.m >= 0 && tile.m < tiles_m && tile.n >= 0 && tile.n < tiles_n);
            ASSERT_TRUE(seen.emplace(tile.m, tile.n).second) << tile.m << ", " << tile.n;
          }
          EXPECT_EQ(std::ssize(seen), schedule.count());
        }
      }
    }
  }
}

std::vector<std::pair<int, int>> first_tiles(const TileSchedule& schedule, int count) {
  std::vector<std::pair<int, int>> tiles;
  for (int i = 0; i < count; ++i) tiles.emplace_back(schedule.at(i).m, schedule.at(i).n);
  return tiles;
}

TEST(TileScheduleTest, BandsAreWalkedAcrossFirst) {
  const std::vector<std::pair<int, int>> down = {{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2},
                                                 {1, 2}, {2, 0}, {2, 1}, {2, 2}};
  EXPECT_EQ(first_tiles({3, 3, {.width = 2}}, 9), down);
  const std::vector<std::pair<int, int>> along = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0},
                                                  {2, 1}, {0, 2}, {1, 2}, {2, 2}};
  EXPECT_EQ(first_tiles({3, 3, {.of_columns = true, .width = 2}}, 9), along);
  const std::vector<std::pair<int, int>> row_by_row = {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}};
  EXPECT_EQ(first_tiles({3, 3, {.width = 1}}, 5), row_by_row);
}

constexpr Sm90GemmConfig kAlone{.tile_rows = 64, .tile_columns = 32, .consumer_warpgroups = 1};
constexpr Sm90GemmConfig kAlongRows{.tile_columns = 192, .cluster_rows = 2};
constexpr Sm90GemmConfig kAlongColumns{.tile_rows = 256, .cluster_columns = 2};

// Columns are those of what is written.
constexpr Sm90GemmConfig kGated{.gated = {.exists = true}, .cluster_rows = 2};
constexpr Sm90GemmConfig kInSlices{.tile_rows = 128, .tile_columns = 48, .split_k = 3};

// Calls visit() with each tile of a block. The early wait of the math warpgroups relies on it that
// the walk says whether a stage follows: they await one if and only if the producer fills one.
template <Sm90GemmConfig kConfig>
void walk_block(const WorkParams& work, int block, int blocks, auto&& visit) {
  TileWalk<kConfig> walk(work, block, blocks);
  for (; walk.has_tile(); walk.advance()) {
    const Tile tile = walk.tile();
    if constexpr (kConfig.work != Work::kGroupedDepth) {  // see expect_groups_of_depth()
      EXPECT_EQ(walk.has_stages(), tile.k_begin < tile.k_end);
    }
    visit(tile);
  }
  EXPECT_FALSE(walk.has_stages());
}

template <Sm90GemmConfig kConfig>
void expect_each_element_once(const WorkParams& work, int blocks) {
  SCOPED_TRACE(testing::Message() << work.rows << "×" << work.columns << ", " << blocks
                                  << " blocks");
  std::vector<int> times(as_size(work.rows) * as_size(work.columns));
  for (int block = 0; block < blocks; ++block) {
    walk_block<kConfig>(work, block, blocks, [&](const Tile& tile) {
      EXPECT_EQ(tile.k_begin, 0);
      EXPECT_EQ(tile.k_end, work.depth);
      EXPECT_EQ(tile.operand_row, tile.row);
      EXPECT_EQ(tile.operand_column, tile.column);
      const int row_end = std::min(tile.row_end, tile.row + kConfig.tile_rows);
      const int column_end = std::min(tile.column_end, tile.column + kConfig.tile_columns);
      ASSERT_TRUE(row_end <= work.rows && column_end <= work.columns);
      for (int row = tile.row; row < row_end; ++row) {
        for (int column = tile.column; column < column_end; ++column) {
          ++times[as_size(row) * as_size(work.columns) + as_size(column)];
        }
      }
    });
  }
  ASSERT_TRUE(std::ranges::all_of(times, [](int n) { return n == 1; }));
}

TEST(TileWalkTest, BlocksTogetherCoverEachElementOfDOnce) {
  for (const auto& [rows, columns] :
       {std::pair{1, 1}, {64, 32}, {65, 33}, {300, 520}, {1000, 77}, {257, 1025}, {3, 2000}}) {
    for (const int blocks : {2, 4, 6, 132}) {
      for (const TileBands& bands : {TileBands{}, {.width = 3}, {.of_columns = true, .width = 3}}) {
        const WorkParams work{.rows = rows, .columns = columns, .depth = 384, .bands = bands};
        expect_each_element_once<kAlone>(work, blocks);
        expect_each_element_once<kAlongRows>(work, blocks);
        expect_each_element_once<kAlongColumns>(work, blocks);
        expect_each_element_once<kGated>(work, blocks);
      }
    }
  }
  expect_each_element_once<kAlone>({.rows = 1000, .columns = 77, .depth = 0}, 8);
}

TEST(TileWalkTest, TilesComeInTheBandsOfTheWork) {
  for (const bool of_columns : {false, true}) {
    const WorkParams work{
        .rows = 3 * 64, .columns = 3 * 32, .depth = 384, .bands = {of_columns, 2}};
    std::vector<std::pair<int, int>> tiles;
    for (TileWalk<kAlone> walk(work, 0, 1); walk.has_tile(); walk.advance()) {
      tiles.emplace_back(walk.tile().row / 64, walk.tile().column / 32);
    }
    EXPECT_EQ(tiles, first_tiles({3, 3, work.bands}, 9));
  }
}

// The blocks of a cluster share a tile, and K: whole blocks of it, each once.
TEST(TileWalkTest, SlicesTogetherCoverK) {
  for (const int depth : {0, 1, 128, 129, 300, 1000, 7168}) {
    const WorkParams work{.rows = 300, .columns = 100, .depth = depth};
    const int tiles = 3 * 3;
    for (int cluster = 0; cluster < tiles; ++cluster) {
      int end = 0;
      for (int rank = 0; rank < 3; ++rank) {
        TileWalk<kInSlices> walk(work, 3 * cluster + rank, 3 * tiles);
        ASSERT_TRUE(walk.has_tile());
        const Tile tile = walk.tile();
        EXPECT_EQ(tile.row, TileWalk<kInSlices>(work, 3 * cluster, 3 * tiles).tile().row);
        EXPECT_EQ(tile.k_begin, end);
        EXPECT_EQ(tile.k_begin % 128, 0);
        end = tile.k_end;
        walk.advance();
        EXPECT_FALSE(walk.has_tile());
      }
      EXPECT_EQ(end, depth);
    }
  }
}

// Groups, in configurations as above.
constexpr Sm90GemmConfig with(Sm90GemmConfig config, Work work, bool swapped = false) {
  config.work = work;
  config.swapped = swapped;
  return config;
}

// Returns the group that computes each element of D; -1 for nobody. Rows of D are A's, whether
// operands are swapped or not. `b_rows`: the rows of B that a group has.
template <Sm90GemmConfig kConfig>
std::vector<int> owners(const WorkParams& work, int blocks, int all_rows, int columns, int b_rows) {
  std::vector<int> owner(as_size(all_rows) * as_size(columns), -1);
  for (int block = 0; block < blocks; ++block) {
    walk_block<kConfig>(work, block, blocks, [&](const Tile& tile) {
      const int row_end = std::min(tile.row_end, tile.row + kConfig.tile_rows);
      const int column_end = std::min(tile.column_end, tile.column + kConfig.tile_columns);
      for (int row = tile.row; row < row_end; ++row) {
        for (int column = tile.column; column < column_end; ++column) {
          const int d_row = kConfig.swapped ? column : row;
          const int d_column = kConfig.swapped ? row : column;
          EXPECT_TRUE(d_row >= 0 && d_row < all_rows && d_column >= 0 && d_column < columns);
          int& of_element = owner[as_size(d_row) * as_size(columns) + as_size(d_column)];
          EXPECT_EQ(of_element, -1);
          of_element = tile.group;
        }
      }
      if (groups_rows(kConfig.work)) {
        EXPECT_EQ(kConfig.swapped ? tile.operand_column : tile.operand_row,
                  kConfig.swapped ? tile.column : tile.row);
        const int first = kConfig.swapped ? tile.row : tile.column;
        EXPECT_EQ(kConfig.swapped ? tile.operand_row : tile.operand_column,
                  tile.group * b_rows + first);
      }
    });
  }
  return owner;
}

template <Sm90GemmConfig kConfig>
void expect_groups_of_rows(const std::vector<int>& offsets, int rows, int columns, int blocks,
                           int depth = 384) {
  const int groups = static_cast<int>(offsets.size()) - 1;
  const WorkParams work{.rows = kConfig.swapped ? columns : rows,
                        .columns = kConfig.swapped ? rows : columns,
                        .depth = depth,
                        .groups = groups,
                        .numbers = offsets.data()};
  const int b_rows = kConfig.gated.exists ? 2 * columns : columns;
  const std::vector<int> owner = owners<kConfig>(work, blocks, rows, columns, b_rows);
  for (int row = 0; row < rows; ++row) {
    int expected = -1;
    for (int group = 0; group < groups; ++group) {
      if (row >= offsets[as_size(group)] && row < offsets[as_size(group) + 1]) {
        expected = group;
      }
    }
    for (int column = 0; column < columns; ++column) {
      ASSERT_EQ(owner[as_size(row) * as_size(columns) + as_size(column)], expected)
          << row << ", " << column;
    }
  }
}

const std::vector<std::vector<int>> kOffsets = {{0, 100},
                                                {0, 0, 5, 5},
                                                {0, 64, 192, 448, 456},
                                                {0, 130, 131, 131, 208, 508, 571},
                                                {0, 0, 0, 300, 303, 306, 306, 435, 600, 600}};

TEST(RowGroupWalkTest, EachRowIsItsGroups) {
  for (const std::vector<int>& offsets : kOffsets) {
    const int rows = offsets.back() + 3;  // those behind the last group are nobody's
    expect_groups_of_rows<with(kAlone, Work::kGroupedRows)>(offsets, rows, 72, 4, 0);
    for (const int columns : {72, 200}) {
      for (const int blocks : {2, 6, 132}) {
        expect_groups_of_rows<with(kAlone, Work::kGroupedRows)>(offsets, rows, columns, blocks);
        expect_groups_of_rows<with(kAlone, Work::kGroupedRows, true)>(offsets, rows, columns,
                                                                      blocks);
        expect_groups_of_rows<with(kAlongRows, Work::kGroupedRows)>(offsets, rows, columns, blocks);
        expect_groups_of_rows<with(kAlongColumns, Work::kGroupedRows)>(offsets, rows, columns,
                                                                       blocks);
        expect_groups_of_rows<with(kGated, Work::kGroupedRows)>(offsets, rows, columns, blocks);
      }
    }
  }
}

TEST(RowGroupWalkTest, MaskedGroupsHaveTheirFirstRows) {
  const std::vector<int> counts = {0, 90, 3, 77, -4, 1000};
  const int rows = 90, columns = 72, groups = 6;
  const WorkParams work{
      .rows = rows, .columns = columns, .depth = 128, .groups = groups, .numbers = counts.data()};
  const std::vector<int> owner =
      owners<with(kAlone, Work::kMaskedRows)>(work, 7, groups * rows, columns, columns);
  for (int i = 0; i < groups * rows * columns; ++i) {
    const int group = i / (rows * columns), row = i / columns % rows;
    const bool exists = row < counts[as_size(group)];
    ASSERT_EQ(owner[as_size(i)], exists ? group : -1);
  }
}

const std::vector<std::vector<int>> kHostile = {
    {0, 100, 50, 200},
    {-5, 7, 300, std::numeric_limits<int>::max()},
    {std::numeric_limits<int>::max(), 0, std::numeric_limits<int>::min(), 5},
    {300, 200, 100, 0}};

TEST(RowGroupWalkTest, HostileOffsetsStayWithinTheRows) {
  for (const std::vector<int>& offsets : kHostile) {
    const WorkParams work{
        .rows = 150, .columns = 72, .depth = 128, .groups = 3, .numbers = offsets.data()};
    owners<with(kAlone, Work::kGroupedRows)>(work, 5, 150, 72, 72);
  }
}

template <Sm90GemmConfig kConfig>
void expect_groups_of_depth(const std::vector<int>& offsets, int blocks) {
  const int rows = 200, columns = 72, groups = static_cast<int>(offsets.size()) - 1;
  const int depth = 128 * (offsets.back() / 128 + groups);
  const WorkParams work{.rows = kConfig.swapped ? columns : rows,
                        .columns = kConfig.swapped ? rows : columns,
                        .depth = depth,
                        .groups = groups,
                        .numbers = offsets.data()};
  const std::vector<int> owner = owners<kConfig>(work, blocks, groups * rows, columns, columns);
  for (int i = 0; i < groups * rows * columns; ++i) {
    ASSERT_EQ(owner[as_size(i)], i / (rows * columns));
  }
  for (int block = 0; block < blocks; ++block) {
    TileWalk<kConfig> walk(work, block, blocks);
    std::vector<bool> has_stages;  // at each tile, and behind the last
    std::vector<bool> is_summed;
    for (; walk.has_tile(); walk.advance()) {
      const Tile tile = walk.tile();
      const auto group = as_size(tile.group);
      EXPECT_EQ(tile.k_begin % 128, 0);
      EXPECT_EQ(tile.k_begin, 128 * (offsets[group] / 128 + tile.group));
      EXPECT_EQ(tile.k_end - tile.k_begin, offsets[group + 1] - offsets[group]);
      EXPECT_LE(tile.k_end, depth);
      EXPECT_EQ(kConfig.swapped ? tile.operand_column : tile.operand_row,
                (kConfig.swapped ? tile.column : tile.row) - tile.group * rows);
      has_stages.push_back(walk.has_stages());
      is_summed.push_back(tile.k_begin < tile.k_end);
    }
    has_stages.push_back(walk.has_stages());
    for (std::size_t i = 0; i < has_stages.size(); ++i) {
      const auto rest = is_summed.begin() + static_cast<std::ptrdiff_t>(i);
      EXPECT_EQ(has_stages[i], std::find(rest, is_summed.end(), true) != is_summed.end());
    }
  }
}

TEST(DepthGroupWalkTest, EachGroupHasItsOwnDAndItsOwnK) {
  for (const std::vector<int>& offsets : kOffsets) {
    for (const int blocks : {2, 6, 132}) {
      expect_groups_of_depth<with(kAlone, Work::kGroupedDepth)>(offsets, blocks);
      expect_groups_of_depth<with(kAlone, Work::kGroupedDepth, true)>(offsets, blocks);
      expect_groups_of_depth<with(kAlongRows, Work::kGroupedDepth)>(offsets, blocks);
      expect_groups_of_depth<with(kAlongColumns, Work::kGroupedDepth)>(offsets, blocks);
    }
  }
}

TEST(DepthGroupWalkTest, HostileOffsetsStayWithinTheColumns) {
  for (const std::vector<int>& offsets : kHostile) {
    for (int i = 0; i < 6; ++i) {
      const auto layout = static_cast<GroupLayout>(i / 3);
      const int columns = 128 * blocks_before_group(layout, 200, 3);
      const GroupBounds bounds = columns_of_group(layout, offsets.data(), i % 3, 3, columns);
      EXPECT_GE(bounds.begin, 0);
      EXPECT_LE(bounds.begin, bounds.end);
      EXPECT_LE(bounds.end, columns);
    }
  }
}

// ---- Rows that arrive.

// Returns the shards that are there when the first `count` of the order are.
std::set<int> shards_of(const WorkParams& work, int count) {
  std::set<int> shards;
  for (int i = 0; i < count; ++i) shards.insert((work.first_shard + i) % work.groups);
  return shards;
}

// Before a tile is read, the shards of its rows are required, one after another.
template <Sm90GemmConfig kConfig>
void expect_rows_are_there(const WorkParams& work, int block, int blocks) {
  ArrivedShards arrived;
  walk_block<kConfig>(work, block, blocks, [&](const Tile& tile) {
    EXPECT_EQ(tile.row % kConfig.tile_rows, 0);
    int awaited = arrived.shards();
    arrived.require(arrival_order<kConfig>(work), tile.row,
                    [&](int i) { EXPECT_EQ(i, awaited++); });
    EXPECT_EQ(arrived.shards(), awaited);
    EXPECT_LE(awaited, work.groups);
    const std::set<int> there = shards_of(work, awaited);
    const int row_end = std::min(tile.row_end, tile.row + kConfig.tile_rows);
    for (int row = tile.row; row < row_end; ++row) {
      ASSERT_TRUE(there.contains(row / work.shard_rows)) << row << " of tile " << tile.row;
    }
  });
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
void expect_arrivals(int shard_rows, int shards, int columns, TileBands bands = {},
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
      expect_each_element_once<kConfig>(work, blocks);
      for (int block = 0; block < blocks; ++block) {
        expect_rows_are_there<kConfig>(work, block, blocks);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

void expect_all(int shard_rows, int shards, int columns) {
  constexpr Work kArriving = Work::kArrivingRows;
  constexpr Sm90GemmConfig kHigh{.tile_rows = 192, .consumer_warpgroups = 3};
  expect_arrivals<with(kAlone, kArriving)>(shard_rows, shards, columns);
  expect_arrivals<with(kAlongRows, kArriving)>(shard_rows, shards, columns);
  expect_arrivals<with(kAlongColumns, kArriving)>(shard_rows, shards, columns, {.width = 3});
  expect_arrivals<with(kHigh, kArriving)>(shard_rows, shards, columns);
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
  expect_arrivals<with(kAlone, Work::kArrivingRows)>(200, 3, 100, {}, 0);
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
    TileWalk<with(kAlone, Work::kArrivingRows)> walk(work, block, 4);
    TileWalk<kAlone> dense(work, block, 4);
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
