// Scales of a weight in memory, as FP32, and what other granularities say the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "octofold/tensor.h"
#include "octofold/types.h"

#include "model/matrix_tiles.h"

namespace octofold::model {

/// Numbers of F32, BF16, F16 or F8_E8M0 (a power of two: 2^(byte - 127), 255 being NaN), exactly.
std::vector<float> floats_of(std::string_view dtype, std::span<const std::byte> bytes);

/// Scales of one matrix [rows, cols], row-major as scale_shape() has them.
struct WeightScales {
  Granularity granularity = Granularity::kTensor;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<float> values;

  /// The scales of a tile that begins and ends where scales do, or at the matrix's edge.
  TensorView of(const Tile& tile) const;
  /// Takes those of such a tile, row-major.
  void put(const Tile& tile, std::span<const float> of_tile);
  /// The same matrix's in another granularity, which repeats() says there is.
  WeightScales repeated(Granularity finer) const;
};

/// True if scales of `coarse`, each repeated, are scales of `fine`.
bool repeats(Granularity coarse, Granularity fine);

/// True if codes are all finite, and scales too.
bool all_finite(DType dtype, std::span<const std::byte> codes);
bool all_finite(std::span<const float> scales);
/// How many scales are NaN, infinite, negative or zero.
std::int64_t count_senseless(std::span<const float> scales);

}  // namespace octofold::model
