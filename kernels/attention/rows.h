// A block's rows of scores, and the keys that they see. A row is a query and one of the heads that
// share a key head: row r of a sequence and key head is query r / group with head r % group of
// them.
#pragma once

#include "kernels/attention/config/attention.h"
#include "kernels/attention/config/params.h"
#include "kernels/numeric/lanes.h"
#include "kernels/shared/arithmetic.h"

namespace octofold::attention {

using config::AttentionForm;
using config::AttentionParams;
using config::RowCount;

struct Range {
  int begin;
  int end;
};

__device__ inline int held_to(int value, int least, int most) {
  return value < least ? least : value > most ? most : value;
}

// Sequence i of those that offsets divide `total` into, whatever they hold.
__device__ inline Range range_at(const int* offsets, int i, int total) {
  const int begin = held_to(offsets[i], 0, total);
  return {begin, held_to(offsets[i + 1], begin, total)};
}

struct Rows {
  int sequence;
  int first_query;  // of the sequence, among all of query_offsets
  int queries;      // of the sequence
  int first;        // row of the sequence
  int end;          // of its rows; not beyond first: there are none
  int key_head;
  int split;
  // Parts that came before the one at hand, in a block that has part after part; true if that one
  // is the last.
  int parts_before;
  bool is_last_part;
};

// Tile `index` of rows of all sequences that the kernel has, by all lanes of a warp.
template <int kRows, RowCount kCount>
__device__ inline void find_rows(const AttentionParams& params, unsigned index, Rows& rows) {
  const auto [sequence, tile, exists] = numeric::find_tile<1>(params.batch, index, [&](int asked) {
    const Range queries = range_at(params.query_offsets, asked, params.queries);
    const auto count = static_cast<unsigned>((queries.end - queries.begin) * params.group);
    if (kCount == RowCount::kFew && count > config::kMostRowsOfFew) return 0u;
    if (kCount == RowCount::kMany && count <= config::kMostRowsOfFew) return 0u;
    return config::ceil_divide(count, static_cast<unsigned>(kRows));
  });
  const Range queries = range_at(params.query_offsets, sequence, params.queries);
  rows.sequence = sequence;
  rows.first_query = queries.begin;
  rows.queries = queries.end - queries.begin;
  rows.first = static_cast<int>(tile * kRows);
  rows.end = exists ? rows.queries * params.group : 0;
}

// The rows of a piece of work. Heads that lie beside each other in memory are at work together; of
// dense queries the last ones, which see most keys where attention is causal, come first.
template <int kRows, RowCount kCount>
__device__ inline Rows rows_of_work(const AttentionParams& params, unsigned work) {
  Rows rows;
  unsigned rest = work;
  rows.key_head = static_cast<int>(rest % static_cast<unsigned>(params.key_heads));
  rest /= static_cast<unsigned>(params.key_heads);
  rows.split = static_cast<int>(rest % static_cast<unsigned>(params.splits));
  rest /= static_cast<unsigned>(params.splits);
  if (params.query_offsets != nullptr) {
    find_rows<kRows, kCount>(params, rest, rows);
  } else {
    rows.sequence = static_cast<int>(rest % static_cast<unsigned>(params.batch));
    const int tile = static_cast<int>(rest / static_cast<unsigned>(params.batch));
    rows.first_query = 0;
    rows.queries = params.queries;
    rows.first = (params.row_tiles - 1 - tile) * kRows;
    rows.end = params.queries * params.group;
  }
  rows.parts_before = 0;
  rows.is_last_part = true;
  return rows;
}

// The rows of a block that does one piece.
template <int kRows, RowCount kCount>
__device__ inline Rows rows_of_block(const AttentionParams& params) {
  return rows_of_work<kRows, kCount>(params, blockIdx.x);
}

// The pieces of a block that stays until all are done. Rounds go forth and back, so that the block
// with the longest piece of one, which comes first, has the shortest of the next.
template <int kRows, RowCount kCount>
class WorkWalk {
 public:
  __device__ explicit WorkWalk(const AttentionParams& params) : params_(params) {}

  // Finds the rows of the next piece that has any; false: there is none.
  __device__ bool next(Rows& rows) {
    const int sequences = params_.query_offsets != nullptr ? 1 : params_.batch;
    const unsigned pieces = static_cast<unsigned>(params_.row_tiles * sequences) *
                            static_cast<unsigned>(params_.key_heads * params_.splits);
    while (round_ * gridDim.x < pieces) {
      const unsigned place = round_ % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
      const unsigned piece = round_ * gridDim.x + place;
      ++round_;
      if (piece >= pieces) continue;
      rows = rows_of_work<kRows, kCount>(params_, piece);
      if (rows.first < rows.end) return true;
    }
    return false;
  }

 private:
  const AttentionParams& params_;
  unsigned round_ = 0;
};

// Keys that a query of the sequence sees.
__device__ inline Range seen_by(const AttentionParams& params, int query, int queries, int keys) {
  const long long place = static_cast<long long>(query) + keys - queries;
  Range seen{0, keys};
  if (params.window_left >= 0 && place > params.window_left) {
    seen.begin = static_cast<int>(place - params.window_left);
  }
  if (params.window_right >= 0) {
    const long long end = place + params.window_right + 1;
    seen.end = end < 0 ? 0 : end < keys ? static_cast<int>(end) : keys;
  }
  return seen;
}

// Keys that rows first to end of a block see: those that any of them sees, and that all see.
struct Sight {
  Range any;
  Range all;
};

template <int kRows>
__device__ inline Sight sight_of(const AttentionParams& params, const Rows& rows, int keys) {
  const int last = min(rows.first + kRows, rows.end) - 1;
  const Range early = seen_by(params, rows.first / params.group, rows.queries, keys);
  const Range late = seen_by(params, last / params.group, rows.queries, keys);
  return {{early.begin, late.end}, {late.begin, early.end}};
}

// The keys that a row sees; one that does not exist sees none.
__device__ inline Range seen_by_row(const AttentionParams& params, const Rows& rows, int row,
                                    int keys) {
  if (row >= rows.end) return {0, 0};
  return seen_by(params, row / params.group, rows.queries, keys);
}

// The block's part of `count` pieces of work.
__device__ inline Range part_of(int count, int split, int splits) {
  // From count · split / splits on, without products of more than 32 bits: those a GPU divides by
  // branches, after which the assembler takes loops over tiles for ones in which lanes differ.
  const int each = count / splits, rest = count % splits;
  return {each * split + rest * split / splits, each * (split + 1) + rest * (split + 1) / splits};
}

// The tiles of keys that the rows' split has, of those that any of the rows sees.
template <AttentionForm kForm, int kKeys>
__device__ inline Range tiles_of(const AttentionParams& params, const Rows& rows, Range seen) {
  if constexpr (kForm.part_keys > 0) {
    constexpr int kTiles = kForm.part_keys / kKeys;
    const Range tiles{seen.begin / kKeys, config::ceil_divide(seen.end, kKeys)};
    if constexpr (!kForm.split) return tiles;
    return {max(tiles.begin, rows.split * kTiles), min(tiles.end, (rows.split + 1) * kTiles)};
  }
  const int before = seen.begin / kKeys;
  const Range part =
      part_of(max(config::ceil_divide(seen.end, kKeys) - before, 0), rows.split, params.splits);
  return {before + part.begin, before + part.end};
}

// add(tiles) for what the block has of `tiles`: all of them, or one part after the other.
template <AttentionForm kForm, int kKeys, typename Add>
__device__ inline void for_each_part(Rows& rows, Range tiles, Add&& add) {
  if constexpr (!kForm.adds_parts()) {
    add(tiles);
  } else {
    constexpr int kTiles = kForm.part_keys / kKeys;
    rows.parts_before = 0;
#pragma unroll 1
    do {
      const int end = min(tiles.end, (tiles.begin / kTiles + 1) * kTiles);
      rows.is_last_part = end >= tiles.end;
      add(Range{tiles.begin, end});
      tiles.begin = end;
      ++rows.parts_before;
    } while (!rows.is_last_part);
  }
}

}  // namespace octofold::attention
