// The walks of TileWalk over products whose rows of A, or whose K, are in groups.
#pragma once

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/group_bounds.h"
#include "kernels/shared/tile_walk.h"

namespace octofold::config {

// Groups of rows: the tiles of one after those of another. How many tiles a group has is known once
// its size has been read, so that a block reads them all, in order.
template <auto kConfig>
class RowGroupWalk {
 public:
  constexpr RowGroupWalk(const WorkParams& work, int block, int blocks)
      : work_(work),
        index_(block / kConfig.cluster_size()),
        step_(blocks / kConfig.cluster_size()),
        rank_(block % kConfig.cluster_size()),
        bounds_(first_group_of_rows<kConfig.work>(work.numbers, work.groups, rows_of_a())) {
    find_group();
  }

  constexpr bool has_tile() const { return group_ < work_.groups; }
  constexpr void advance() {
    index_ += step_;
    find_group();
  }

  constexpr Tile tile() const {
    const auto [row, column] = first_element<kConfig>(schedule(), index_, rank_);
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
  constexpr bool stages_follow() const {
    RowGroupWalk next = *this;
    next.advance();
    return next.has_stages();
  }

 private:
  constexpr int rows_of_a() const { return kConfig.swapped ? work_.columns : work_.rows; }
  constexpr TileSchedule schedule() const {
    const int rows = bounds_.end - bounds_.begin;
    return kConfig.swapped ? cluster_schedule<kConfig>(work_.rows, rows)
                           : cluster_schedule<kConfig>(rows, work_.columns);
  }
  // Goes on to the group of the tile, whose number is then counted from the group's first.
  constexpr void find_group() {
    while (group_ < work_.groups) {
      const int tiles = schedule().count();
      if (index_ < tiles) return;
      index_ -= tiles;
      ++group_;
      bounds_ = next_group_of_rows<kConfig.work>(bounds_, work_.numbers, group_, work_.groups,
                                                 rows_of_a());
    }
  }

  const WorkParams& work_;
  int index_;  // of the cluster's tile in the group
  int step_;
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

  constexpr bool has_tile() const { return index_ < tiles_ * work_.groups; }
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

  constexpr bool has_stages() const { return has_stages_from(index_); }
  constexpr bool stages_follow() const { return has_stages_from(index_ + step_); }

 private:
  constexpr GroupBounds columns_of(int group) const {
    return columns_of_group(work_.numbers, group, work_.groups, work_.depth);
  }
  constexpr bool has_stages_from(int index) const {
    for (; index < tiles_ * work_.groups; index += step_) {
      const GroupBounds depth = columns_of(index / tiles_);
      if (depth.begin < depth.end) return true;
    }
    return false;
  }

  const WorkParams& work_;
  TileSchedule schedule_;  // of a group
  int index_;              // of the cluster's tile
  int step_;
  int tiles_;
  int rank_;
};

}  // namespace octofold::config
