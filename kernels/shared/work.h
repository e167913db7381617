// The work that a product's blocks of threads share, and what one does at a time (tile_walk.h).
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/tile_schedule.h"

namespace octofold::config {

// The work of a product: all of D as one, or in groups whose sizes are numbers in device memory.
enum class Work : unsigned char {
  kDense,
  kGroupedRows,   // rows of A and D in groups, one after another, each with a B of its own
  kMaskedRows,    // the same, each with room for as many rows, of which the first are A's
  kGroupedDepth,  // K in groups, each with a D of its own
  kArrivingRows,  // all of D, while rows of A still arrive in shards
};

constexpr const char* word(Work work) {
  switch (work) {
    case Work::kDense: return "";
    case Work::kGroupedRows: return "groups of rows";
    case Work::kMaskedRows: return "masked groups of rows";
    case Work::kGroupedDepth: return "groups of K";
    case Work::kArrivingRows: return "arriving rows";
  }
  return "?";
}

constexpr bool has_groups(Work work) { return work != Work::kDense && work != Work::kArrivingRows; }
// True if each group has a B of its own.
constexpr bool groups_rows(Work work) {
  return work == Work::kGroupedRows || work == Work::kMaskedRows;
}

// All blocks of a product share these: the sizes of D, and how many values its elements sum. With
// groups, rows of A are those of all groups together (kGroupedRows), or that each has room for; B's
// rows are one group's, and so are both where K is in groups. The depth is then that of all groups
// together, each of which begins at a multiple of 128. Where rows arrive, their shards are groups.
struct WorkParams {
  int rows;
  int columns;
  int depth;
  int groups{};
  // [groups + 1]: where each begins, and the last one ends; or counts or flags [groups].
  const int* numbers{};
  GroupLayout layout{};             // of groups of K
  int shard_rows{}, first_shard{};  // of rows that arrive: of each; the one that comes first
  TileBands bands{};                // of a dense product
};

// One unit of work. All that loads, multiplies or stores knows no more of the product than this.
struct Tile {
  int group;
  // The first row of each operand that the tile reads.
  int operand_row, operand_column;
  // The tile's first element in D, and where D's rows and columns end, perhaps beyond the tile.
  // Nothing behind the ends is read or stored; a cluster's last tile may begin there.
  int row, column;
  int row_end;
  int column_end;
  // The part of K to sum. Empty: the sum is 0.
  int k_begin;
  int k_end;
};

}  // namespace octofold::config
