// The walk of the blocks over their tiles: the very code that the kernel runs.
#include "kernels/config/tile_walk.h"

#include <gtest/gtest.h>
#include <set>
#include <utility>
#include <vector>

#include "kernels/config/sm90_gemm.h"

namespace octofold::config {
namespace {

TEST(TileScheduleTest, EachTileComesOnce) {
  for (int tiles_m = 1; tiles_m <= 20; ++tiles_m) {
    for (int tiles_n = 1; tiles_n <= 20; ++tiles_n) {
      for (const int raster_rows : {1, 2, 3, 8, 16}) {
        const TileSchedule schedule{tiles_m, tiles_n, raster_rows};
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

constexpr Sm90GemmConfig kAlone{.tile_rows = 64, .tile_columns = 32, .math_warpgroups = 1};
constexpr Sm90GemmConfig kAlongRows{.tile_columns = 192, .cluster_rows = 2};
constexpr Sm90GemmConfig kAlongColumns{.tile_rows = 256, .cluster_columns = 2, .raster_rows = 3};

// Columns are those of what is written.
constexpr Sm90GemmConfig kGated{.gated = {.exists = true}, .cluster_rows = 2};
constexpr Sm90GemmConfig kInSlices{.tile_rows = 128, .tile_columns = 48, .cluster_depth = 3};

template <Sm90GemmConfig kConfig>
void expect_each_element_once(const WorkParams& work, int blocks) {
  SCOPED_TRACE(testing::Message() << work.rows << "×" << work.columns << ", " << blocks
                                  << " blocks");
  std::vector<int> times(static_cast<std::size_t>(work.rows) *
                         static_cast<std::size_t>(work.columns));
  for (int block = 0; block < blocks; ++block) {
    for (TileWalk<kConfig> walk(work, block, blocks); walk.has_tile(); walk.advance()) {
      const Tile tile = walk.tile();
      EXPECT_EQ(tile.k_begin, 0);
      EXPECT_EQ(tile.k_end, work.depth);
      EXPECT_EQ(tile.operand_row, tile.row);
      EXPECT_EQ(tile.operand_column, tile.column);
      const int row_end = std::min(tile.row_end, tile.row + kConfig.tile_rows);
      const int column_end = std::min(tile.column_end, tile.column + kConfig.tile_columns);
      for (int row = tile.row; row < row_end; ++row) {
        for (int column = tile.column; column < column_end; ++column) {
          ASSERT_TRUE(row < work.rows && column < work.columns);
          ++times[static_cast<std::size_t>(row) * static_cast<std::size_t>(work.columns) +
                  static_cast<std::size_t>(column)];
        }
      }
    }
  }
  for (const int n : times) ASSERT_EQ(n, 1);
}

TEST(TileWalkTest, BlocksTogetherCoverEachElementOfDOnce) {
  for (const auto& [rows, columns] :
       {std::pair{1, 1}, {64, 32}, {65, 33}, {300, 520}, {1000, 77}, {257, 1025}, {3, 2000}}) {
    for (const int blocks : {2, 4, 6, 132}) {
      const WorkParams work{.rows = rows, .columns = columns, .depth = 384};
      expect_each_element_once<kAlone>(work, blocks);
      expect_each_element_once<kAlongRows>(work, blocks);
      expect_each_element_once<kAlongColumns>(work, blocks);
      expect_each_element_once<kGated>(work, blocks);
    }
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

// What the early wait of the math warpgroups relies on: they await a stage if and only if the
// producer fills one.
TEST(TileWalkTest, SaysWhetherStagesFollow) {
  for (const int depth : {0, 1, 128, 1000}) {
    const WorkParams work{.rows = 1000, .columns = 1000, .depth = depth};
    for (int block = 0; block < 8; ++block) {
      TileWalk<kAlone> walk(work, block, 8);
      while (walk.has_tile()) {
        const bool follow = walk.stages_follow();
        walk.advance();
        EXPECT_EQ(follow, walk.has_tile() && walk.tile().k_begin < walk.tile().k_end);
      }
    }
  }
}

}  // namespace
}  // namespace octofold::config
