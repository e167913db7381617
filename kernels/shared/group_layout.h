// The places of groups of rows in a transpose that is summed along them (GroupLayout): each group's
// columns begin at a multiple of 128, so that no scale unit has values of two groups. The sizes of
// groups are known to the device alone; places follow from where a group begins, without those
// before it.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/group_bounds.h"

namespace octofold::config {

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
