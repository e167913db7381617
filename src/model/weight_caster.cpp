#include "model/weight_caster.h"

#include <algorithm>
#include <cmath>

#include "octofold/scale_layout.h"

#include "core/check.h"

namespace octofold::model {
namespace {

constexpr std::int64_t kBlock = kScaleBlock;

/// They begin at multiples of 128, so that no scale block is cut in two, and have whole rows where
/// scales are of rows.
std::vector<Tile> tiles_of(const CastMatrix& matrix) {
  const auto whole_blocks = [](std::int64_t size) {
    return std::max(kBlock, size / kBlock * kBlock);
  };
  const bool narrow = varies_along_k(matrix.granularity);
  const std::int64_t widest =
      narrow ? whole_blocks(kTileBytes / (kBlock * matrix.value_bytes)) : matrix.cols;
  const std::int64_t cols = std::min(matrix.cols, widest);
  const std::int64_t rows = whole_blocks(kTileBytes / (cols * matrix.value_bytes));
  std::vector<Tile> tiles;
  for (std::int64_t row = 0; row < matrix.rows; row += rows) {
    for (std::int64_t col = 0; col < matrix.cols; col += cols) {
      tiles.push_back({row, col, std::min(rows, matrix.rows - row),
                       std::min(cols, matrix.cols - col), matrix.cols});
    }
  }
  return tiles;
}

}  // namespace

WeightScales WeightCaster::cast(const CastMatrix& matrix, bool& finite) {
  const std::vector<std::int64_t> shape = scale_shape(matrix.granularity, matrix.rows, matrix.cols);
  WeightScales scales{matrix.granularity, matrix.rows, matrix.cols, {}};
  scales.values.resize(shape[0] * (shape.size() > 1 ? shape[1] : 1));
  const std::vector<Tile> tiles = tiles_of(matrix);
  const bool again = matrix.granularity == Granularity::kTensor && tiles.size() > 1;
  if (again) scales.values[0] = tensor_scale(matrix, tiles);
  const ScaleSource source = again ? ScaleSource::kGiven : ScaleSource::kComputed;
  for (const Tile& tile : tiles) {
    cast_tile(matrix, tile, source, scales, again);
    finite = finite && all_finite(DType::kE4M3, codes_);
    for_each_run(tile, std::span<const std::byte>(codes_), matrix.codes);
  }
  finite = finite && all_finite(scales.values);
  return scales;
}

float WeightCaster::tensor_scale(const CastMatrix& matrix, std::span<const Tile> tiles) {
  WeightScales scale{Granularity::kTensor, matrix.rows, matrix.cols, {0.0F}};
  float largest = 0;
  for (const Tile& tile : tiles) {
    cast_tile(matrix, tile, ScaleSource::kComputed, scale, false);
    if (!(scale.values[0] <= largest) && !std::isnan(largest)) largest = scale.values[0];
  }
  return largest;
}

void WeightCaster::cast_tile(const CastMatrix& matrix, const Tile& tile, ScaleSource source,
                             WeightScales& scales, bool again) {
  const TensorView values = matrix.values(tile, again);
  const std::vector<std::int64_t> shape = scale_shape(matrix.granularity, tile.rows, tile.cols);
  const std::int64_t blocks = shape.size() > 1 ? shape[1] : 1;
  codes_.resize(tile.size());
  tile_scales_.assign(shape[0] * blocks, 0);
  CastTarget target{.data = octofold::matrix(codes_.data(), DType::kE4M3, tile.rows, tile.cols),
                    .scale = {},
                    .format = format_,
                    .scales = source};
  target.format.granularity = matrix.granularity;
  if (source == ScaleSource::kGiven) {
    tile_scales_ = scales.values;
    target.format.power_of_two.reset();
  }
  target.scale = shape.size() > 1
                     ? octofold::matrix(tile_scales_.data(), DType::kFloat32, shape[0], blocks)
                     : vector(tile_scales_.data(), DType::kFloat32, shape[0]);
  octofold::cast(values, {.rows = target});
  scales.put(tile, tile_scales_);
}

}  // namespace octofold::model
