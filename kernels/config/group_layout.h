// Where groups of rows stand in a transpose that is summed along them: each group's columns begin
// at a multiple of 128, so that no scale unit has values of two groups. The sizes of groups are
// known to the device alone; places follow from where a group begins, without those before it.
#pragma once

#include "octofold/vocabulary.h"

namespace octofold::config {

// Blocks of 128 columns (slots) of the transpose of so many rows. Group g's begin at slot
// offsets[g] / 128 + g, and ceil(size / 128) of them are its own: the next group begins behind
// them, as floor((o + s) / 128) + 1 ≥ floor(o / 128) + ceil(s / 128).
constexpr long long group_slots(long long rows, long long groups) {
  return rows / kScaleBlock + groups;
}

// Rows begin … end - 1 belong to the group of a slot, of which the slot has the first 128. None of
// a slot that no group reaches.
struct SlotRows {
  long long begin;
  long long end;

  constexpr bool any() const { return begin < end; }
};

constexpr long long clamped(long long value, long long least, long long most) {
  return value < least ? least : value > most ? most : value;
}

// All rows that belong to groups.
constexpr SlotRows grouped_rows(const int* offsets, int groups, long long rows) {
  const long long begin = clamped(offsets[0], 0, rows);
  return {begin, clamped(offsets[groups], begin, rows)};
}

// `offsets` [groups + 1]: where the groups of `rows` rows begin, and where the last one ends.
// Whatever they are, no row beyond `rows` is given out.
constexpr SlotRows rows_of_slot(const int* offsets, int groups, long long rows, long long slot) {
  const SlotRows all = grouped_rows(offsets, groups, rows);
  int first = 0, last = groups - 1;
  while (first < last) {  // the last group that begins at the slot or before it
    const int middle = last - (last - first) / 2;
    const long long begin = clamped(offsets[middle], all.begin, all.end);
    if (begin / kScaleBlock + middle <= slot) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  const long long begin = clamped(offsets[first], all.begin, all.end);
  const long long end = clamped(offsets[first + 1], begin, all.end);
  const long long slots_before = slot - (begin / kScaleBlock + first);
  if (slots_before < 0) return {0, 0};
  return {begin + slots_before * kScaleBlock, end};
}

}  // namespace octofold::config
