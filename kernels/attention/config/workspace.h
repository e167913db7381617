// How many blocks may split a row's keys in attention, and what they leave in the workspace: a
// matter of the rows, queries times heads, so that one workspace is for all keys and GPUs; with
// parts of a fixed number of keys a matter of these too.
#pragma once

namespace octofold::config {

constexpr long long attention_splits(long long rows) {
  if (rows <= 0) return 1;
  const long long splits = 16384 / rows;
  return splits < 1 ? 1 : splits > 64 ? 64 : splits;
}

// FP32 numbers: of each row and split a sum of values, a maximum and a sum of weights.
constexpr long long attention_workspace_elements(long long rows, long long value_size) {
  const long long splits = attention_splits(rows);
  return splits == 1 ? 0 : rows * splits * (value_size + 2);
}

// The keys of a part where a row's result does not depend on the batch (kernels/attention/parts.h):
// a multiple of each kernel's keys of a tile. Of few rows, and of wide heads, blocks share keys; of
// many rows with sums that a warp holds a block seldom has less than all of them, and adding a part
// costs more than of few.
inline constexpr int kPartKeys = 1024, kLongPartKeys = 3072;

constexpr long long attention_parts(long long keys) { return (keys + kPartKeys - 1) / kPartKeys; }

// True if each part of each row has a place in the workspace. Otherwise all parts of a row share
// one, and one block has them all.
constexpr bool attention_has_parts_apart(long long rows, long long keys) {
  constexpr long long kMost = 1 << 17;
  return rows <= kMost && attention_parts(keys) <= kMost && rows * attention_parts(keys) <= kMost;
}

// FP32 numbers: of each row and part a sum of values, a maximum and a sum of weights; or of each
// row a sum of values, and two each of the others.
constexpr long long attention_parts_elements(long long rows, long long keys, long long value_size) {
  if (attention_parts(keys) <= 1) return 0;
  if (!attention_has_parts_apart(rows, keys)) return rows * (value_size + 4);
  return rows * attention_parts(keys) * (value_size + 2);
}

}  // namespace octofold::config
