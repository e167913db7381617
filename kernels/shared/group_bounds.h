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

// The places of groups of rows in a transpose that is summed along them (GroupLayout): each group's
// columns begin at a multiple of 128, so that no scale unit has values of two groups. The sizes of
// groups are known to the device alone; places follow from where a group begins, without those
// before it.

// All rows that belong to groups.
constexpr GroupBounds grouped_rows(const int* offsets, int groups, long long rows) {
  constexpr int kMost = 0x7FFFFFFF;
  const int begin = clamped(offsets[0], 0, rows < kMost ? static_cast<int>(rows) : kMost);
  return {begin, clamped(offsets[groups], begin, rows < kMost ? static_cast<int>(rows) : kMost)};
}

// Rows from the first of a slot (128 columns of the transpose) to the end of its group, which has
// ceil(size / 128) slots; the slot has 128 of them at most, and none where no group reaches it.
// `offsets` [groups + 1]: where the groups of `rows` rows begin, and where the last one ends.
// Whatever they are, no row beyond `rows` is given out.
constexpr GroupBounds rows_of_slot(GroupLayout layout, const int* offsets, int groups,
                                   long long rows, int slot) {
  const GroupBounds all = grouped_rows(offsets, groups, rows);
  int first = 0, last = groups - 1;
  while (first < last) {  // the last group that begins at the slot or before it
    const int middle = last - (last - first) / 2;
    const int begin = clamped(offsets[middle], all.begin, all.end);
    if (blocks_before_group(layout, begin, middle) <= slot) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  const int begin = clamped(offsets[first], all.begin, all.end);
  const int end = clamped(offsets[first + 1], begin, all.end);
  const int slots_before = slot - blocks_before_group(layout, begin, first);
  // No product of slots that nothing reaches: it might not fit.
  if (slots_before < 0 || slots_before > (end - begin) / kScaleBlock) return {end, end};
  const int row = slots_before * kScaleBlock;
  return row < end - begin ? GroupBounds{begin + row, end} : GroupBounds{end, end};
}

}  // namespace octofold::config
