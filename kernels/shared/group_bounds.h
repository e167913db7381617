// The bounds of a group, from numbers in device memory that nobody has checked: whatever they are,
// no group reaches beyond the tensors.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/work.h"

namespace octofold::config {

struct GroupBounds {
  int begin;
  int end;
};

constexpr int clamped(int value, int least, int most) {
  return value < least ? least : value > most ? most : value;
}

// Rows of A in a group. Offsets: each group begins where the last one ended, so that together they
// have no more than `rows`. Counts: each has `rows` places. Of the group behind the last: nothing.
template <Work kWork>
constexpr GroupBounds next_group_of_rows(GroupBounds before, const int* numbers, int group,
                                         int groups, int rows) {
  if (group >= groups) return {before.end, before.end};
  if constexpr (kWork == Work::kMaskedRows) {
    return {group * rows, group * rows + clamped(numbers[group], 0, rows)};
  } else {
    return {before.end, clamped(numbers[group + 1], before.end, rows)};
  }
}

template <Work kWork>
constexpr GroupBounds first_group_of_rows(const int* numbers, int groups, int rows) {
  int first = 0;
  if constexpr (kWork == Work::kGroupedRows) first = groups > 0 ? clamped(numbers[0], 0, rows) : 0;
  return next_group_of_rows<kWork>({first, first}, numbers, 0, groups, rows);
}

// Blocks of 128 columns, where K is in groups, before those of a group that begins at `row` of what
// was cast. Before the group behind the last one they are all that there are.
template <typename Int>
constexpr Int blocks_before_group(GroupLayout layout, Int row, Int group) {
  return row / kScaleBlock + (layout == GroupLayout::kSpaced ? group : 0);
}

// Rows at most that were cast to so many columns.
template <typename Int>
constexpr Int most_rows_of_columns(GroupLayout layout, Int columns, Int groups) {
  return layout == GroupLayout::kTight ? columns : columns - kScaleBlock * (groups - 1) - 1;
}

// The number that all offsets are multiples of.
constexpr int offset_unit(GroupLayout layout) {
  return layout == GroupLayout::kTight ? kScaleBlock : 1;
}

// Columns of a group, of `columns` in all.
constexpr GroupBounds columns_of_group(GroupLayout layout, const int* offsets, int group,
                                       int groups, int columns) {
  const int most = most_rows_of_columns(layout, columns, groups);
  const int first = clamped(offsets[group], 0, most);
  const int size = clamped(offsets[group + 1], first, most) - first;
  const int begin = kScaleBlock * blocks_before_group(layout, first, group);
  return {begin, begin + size};
}

}  // namespace octofold::config
