// The walks of TileWalk over products whose rows of A, or whose K, are in groups.
#pragma once

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/group_bounds.h"
#include "kernels/shared/tile_walk.h"

namespace octofold::config {

// The rows of whole tiles, of so many rows, in units which take as long full or not.
constexpr int whole_tile_rows(int rows, int tile_rows, int unit) {
  return ceil_divide(rows, unit) / (tile_rows / unit) * tile_rows;
}

// The first tile of a cluster among those of last rows, which are dealt from the last cluster on:
// so those that have one whole tile less have one of these more, as often as not.
constexpr int first_last_tile(int cluster, int clusters) { return clusters - 1 - cluster; }

// Groups of rows: the tiles of one after those of another. How many tiles a group has is known once
// its size has been read, so that a block reads them all, in order.
//
// A group's last row of tiles may have fewer sub-tiles than others, and takes less time. So it is
// dealt out for itself, and a cluster has as many of either as any other, or one more. (By one
// count for both, where each group has one whole tile of rows and one that is not, every other
// block gets whole ones alone: docs/notes/experts.md.)
template <auto kConfig>
class RowGroupWalk {
 public:
  constexpr RowGroupWalk(const WorkParams& work, int block, int blocks)
      : work_(work),
        whole_(block / kConfig.cluster_size()),
        step_(blocks / kConfig.cluster_size()),
        last_(first_last_tile(whole_, step_)),
        rank_(block % kConfig.cluster_size()),
        bounds_(first_group_of_rows<kConfig.work>(work.numbers, work.groups, rows_of_a())) {
    find_tile();
  }

  constexpr bool has_tile() const { return group_ < work_.groups; }
  constexpr void advance() {
    (is_whole(schedule()) ? whole_ : last_) += step_;
    find_tile();
  }

  constexpr Tile tile() const {
    const TileSchedule whole = schedule();
    const TileCoordinate place =
        is_whole(whole) ? whole.at(whole_) : TileCoordinate{whole.tiles_m, last_};
    const auto [row, column] = first_element_at<kConfig>(place, rank_);
    // B lies in memory with one group's rows below another's: gates, and as many ups.
    constexpr int kParts = kConfig.operand_columns() / kConfig.tile_columns;
    if constexpr (kConfig.swapped) {
      return {.group = group_,
              .operand_row = group_ * work_.rows + row,
              .operand_column = bounds_.begin + column,
              .row = row,
              .column = bounds_.begin + column,
              .row_end = work_.rows,
              .column_end = bounds_.end,
              .k_begin = 0,
              .k_end = work_.depth};
    } else {
      return {.group = group_,
              .operand_row = bounds_.begin + row,
              .operand_column = group_ * kParts * work_.columns + column,
              .row = bounds_.begin + row,
              .column = column,
              .row_end = bounds_.end,
              .column_end = work_.columns,
              .k_begin = 0,
              .k_end = work_.depth};
    }
  }

  constexpr bool has_stages() const { return has_tile() && work_.depth > 0; }

 private:
  // The schedule of the group's whole tiles; those of the last row are dealt out with them where
  // they take as long.
  constexpr TileSchedule schedule() const {
    const int rows = rows_of_group();
    if constexpr (kConfig.swapped) {
      return cluster_schedule<kConfig>(work_.rows, rows);
    } else {
      constexpr int kRows = kConfig.cluster_tile_rows();
      return cluster_schedule<kConfig>(whole_tile_rows(rows, kRows, kConfig.row_unit()),
                                       work_.columns);
    }
  }
  constexpr bool is_whole(const TileSchedule& whole) const { return whole_ < whole.count(); }
  constexpr bool has_last(const TileSchedule& whole) const {
    return !kConfig.swapped && kConfig.row_unit() < kConfig.cluster_tile_rows() &&
           whole.tiles_m * kConfig.cluster_tile_rows() < rows_of_group();
  }

  constexpr int rows_of_group() const { return bounds_.end - bounds_.begin; }
  constexpr int rows_of_a() const { return kConfig.swapped ? work_.columns : work_.rows; }

  // Goes on to the group of the tile, whose number is then counted from the group's first.
  constexpr void find_tile() {
    while (group_ < work_.groups) {
      const TileSchedule whole = schedule();
      if (is_whole(whole)) return;
      if (has_last(whole)) {
        if (last_ < whole.tiles_n) return;
        last_ -= whole.tiles_n;
      }
      whole_ -= whole.count();
      ++group_;
      bounds_ = next_group_of_rows<kConfig.work>(bounds_, work_.numbers, group_, work_.groups,
                                                 rows_of_a());
    }
  }

  const WorkParams& work_;
  int whole_;  // of the cluster's next whole tile in the group
  int step_;
  int last_;  // and of its next one in a last row
  int rank_;
  int group_ = 0;
  GroupBounds bounds_;
};

template <auto kConfig>
class TileWalk<kConfig, Work::kGroupedRows> : public RowGroupWalk<kConfig> {
 public:
  using RowGroupWalk<kConfig>::RowGroupWalk;
};
template <auto kConfig>
class TileWalk<kConfig, Work::kMaskedRows> : public RowGroupWalk<kConfig> {
 public:
  using RowGroupWalk<kConfig>::RowGroupWalk;
};

// Groups of K: each has all tiles of its D, which stand one below another.
template <auto kConfig>
class TileWalk<kConfig, Work::kGroupedDepth> {
 public:
  constexpr TileWalk(const WorkParams& work, int block, int blocks)
      : work_(work),
        schedule_(cluster_schedule<kConfig>(work.rows, work.columns)),
        index_(block / kConfig.cluster_size()),
        step_(blocks / kConfig.cluster_size()),
        tiles_(schedule_.count()),
        rank_(block % kConfig.cluster_size()) {}

  constexpr bool has_tile() const { return has_tile(index_); }
  constexpr void advance() { index_ += step_; }

  constexpr Tile tile() const {
    const int group = index_ / tiles_;
    const auto [row, column] = first_element<kConfig>(schedule_, index_ - group * tiles_, rank_);
    const GroupBounds depth = columns_of(group);
    const int row_base = kConfig.swapped ? 0 : group * work_.rows;
    const int column_base = kConfig.swapped ? group * work_.columns : 0;
    return {.group = group,
            .operand_row = row,
            .operand_column = column,
            .row = row_base + row,
            .column = column_base + column,
            .row_end = row_base + work_.rows,
            .column_end = column_base + work_.columns,
            .k_begin = depth.begin,
            .k_end = depth.end};
  }

  // Looks for the next tile that has some once, not at each tile: behind many empty groups it is
  // far.
  constexpr bool has_stages() {
    if (next_summed_ < index_) {
      for (next_summed_ = index_; has_tile(next_summed_); next_summed_ += step_) {
        const GroupBounds depth = columns_of(next_summed_ / tiles_);
        if (depth.begin < depth.end) break;
      }
    }
    return has_tile(next_summed_);
  }

 private:
  constexpr bool has_tile(int index) const { return index < tiles_ * work_.groups; }
  constexpr GroupBounds columns_of(int group) const {
    return columns_of_group(work_.layout, work_.numbers, group, work_.groups, work_.depth);
  }

  const WorkParams& work_;
  TileSchedule schedule_;  // of a group
  int index_;              // of the cluster's tile
  int step_;
  int tiles_;
  int rank_;
  int next_summed_ = -1;  // the first from index_ on that has stages, if it has been looked for
};

}  // namespace octofold::config
