// How many blocks may split a row's keys in attention, and what they leave in the workspace: a
// matter of the rows alone, queries times heads, so that one workspace is for all keys and GPUs.
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

}  // namespace octofold::config
