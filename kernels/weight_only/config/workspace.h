// How many blocks may share the depth of a product with FP8 weights, and what they leave in the
// workspace: a matter of the sizes alone, so that one workspace is for all GPUs.
#pragma once

namespace octofold::config {

// More than a few rows want tiles of many columns, so that x is not read again and again; then
// there are too few tiles for a GPU. Of many rows there are enough.
constexpr long long weight_only_splits(long long rows, long long columns, long long depth) {
  constexpr long long kMostNumbers = 1 << 22, kLeastDepth = 512;
  if (rows <= 16 || columns <= 0 || rows > kMostNumbers / columns) return 1;
  long long splits = 4;
  while (splits > 1 && (splits * kLeastDepth > depth || splits * rows * columns > kMostNumbers)) {
    splits /= 2;
  }
  return splits;
}

// FP32 numbers: of each split its sums.
constexpr long long weight_only_workspace_elements(long long rows, long long columns,
                                                   long long depth) {
  const long long splits = weight_only_splits(rows, columns, depth);
  return splits == 1 ? 0 : splits * rows * columns;
}

}  // namespace octofold::config
