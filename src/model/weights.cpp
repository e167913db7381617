#include "model/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "octofold/convert_dtype.h"
#include "octofold/dequantize.h"
#include "octofold/scale_layout.h"

#include "core/check.h"
#include "core/scale_layout.h"

namespace octofold::model {
namespace {

float of_e8m0(std::byte code) {
  const int exponent = std::to_integer<int>(code);
  return exponent == 255 ? std::numeric_limits<float>::quiet_NaN()
                         : std::ldexp(1.0F, exponent - 127);
}

/// Blocks of scales along a row of so many columns.
std::int64_t blocks_of(Granularity granularity, std::int64_t cols) {
  return core::scale_grid(granularity, 1, cols).cols;
}

/// The place of the scale of element (row, col).
std::int64_t place(Granularity granularity, std::int64_t cols, std::int64_t row, std::int64_t col) {
  const auto unit_of = [](std::int64_t index, int unit) {
    return unit == GranularityRow::kWhole ? 0 : index / unit;
  };
  const GranularityRow unit = row_of(granularity);
  return unit_of(row, unit.rows) * blocks_of(granularity, cols) + unit_of(col, unit.cols);
}

}  // namespace

std::vector<float> floats_of(std::string_view dtype, std::span<const std::byte> bytes) {
  if (dtype == "F8_E8M0") {
    std::vector<float> values(bytes.size());
    std::transform(bytes.begin(), bytes.end(), values.begin(), of_e8m0);
    return values;
  }
  if (dtype == "F32") {
    std::vector<float> values(bytes.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  const DType from = dtype == "F8_E4M3" ? DType::kE4M3
                     : dtype == "BF16"  ? DType::kBFloat16
                                        : DType::kFloat16;
  std::vector<float> values(bytes.size() / size_of(from));
  const auto count = std::ssize(values);
  convert_dtype(vector(bytes.data(), from, count), vector(values.data(), DType::kFloat32, count));
  return values;
}

TensorView WeightScales::of(const Tile& tile) const {
  const float* first = values.data() + place(granularity, cols, tile.row, tile.col);
  const std::vector<std::int64_t> shape = scale_shape(granularity, tile.rows, tile.cols);
  if (shape.size() == 1) return vector(first, DType::kFloat32, shape[0]);
  return matrix(first, DType::kFloat32, shape[0], shape[1], blocks_of(granularity, cols));
}

void WeightScales::put(const Tile& tile, std::span<const float> of_tile) {
  const std::vector<std::int64_t> shape = scale_shape(granularity, tile.rows, tile.cols);
  const std::int64_t blocks = shape.size() > 1 ? shape[1] : 1;
  const std::int64_t stride = blocks_of(granularity, cols);
  const auto first = values.begin() + place(granularity, cols, tile.row, tile.col);
  for (std::int64_t line = 0; line < shape[0]; ++line) {
    std::copy_n(of_tile.begin() + line * blocks, blocks, first + line * stride);
  }
}

WeightScales WeightScales::repeated(Granularity finer) const {
  if (finer == granularity) return *this;
  const std::vector<std::int64_t> shape = scale_shape(finer, rows, cols);
  const std::int64_t lines = shape[0];
  const std::int64_t blocks = shape.size() > 1 ? shape[1] : 1;
  const std::int64_t rows_of_line = row_of(finer).rows;
  WeightScales result{finer, rows, cols, {}};
  result.values.reserve(lines * blocks);
  for (std::int64_t line = 0; line < lines; ++line) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      result.values.push_back(
          values[place(granularity, cols, line * rows_of_line, block * kScaleBlock)]);
    }
  }
  return result;
}

bool repeats(Granularity coarse, Granularity fine) {
  return coarse == fine || coarse == Granularity::kTensor || fine == Granularity::kBlock1x128;
}

bool all_finite(DType dtype, std::span<const std::byte> codes) {
  // e4m3's NaN are 0x7f and 0xff; e5m2's infinities and NaN those from 0x7c on.
  const auto limit = std::byte{dtype == DType::kE4M3 ? std::uint8_t{0x7e} : std::uint8_t{0x7b}};
  unsigned beyond = 0;
  for (const std::byte code : codes)
    beyond |= static_cast<unsigned>((code & std::byte{0x7f}) > limit);
  return beyond == 0;
}

std::int64_t count_senseless(std::span<const float> scales) {
  return std::count_if(scales.begin(), scales.end(),
                       [](float scale) { return !std::isfinite(scale) || scale <= 0; });
}

bool all_finite(std::span<const float> scales) {
  return std::all_of(scales.begin(), scales.end(),
                     [](float scale) { return std::isfinite(scale); });
}

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
    const TensorView values = cast_tile(matrix, tile, source, scales, again);
    if (matrix.change != nullptr) count(values, tile, scales, *matrix.change);
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

TensorView WeightCaster::cast_tile(const CastMatrix& matrix, const Tile& tile, ScaleSource source,
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
  return values;
}

void WeightCaster::count(const TensorView& values, const Tile& tile, const WeightScales& scales,
                         WeightChange& change) {
  const std::int64_t size = tile.size();
  made_.resize(size);
  dequantize({octofold::matrix(std::as_const(codes_).data(), DType::kE4M3, tile.rows, tile.cols),
              scales.of(tile), scales.granularity},
             octofold::matrix(made_.data(), DType::kFloat32, tile.rows, tile.cols));
  const std::span old(static_cast<const float*>(values.data), size);
  change.values += size;
  for (std::int64_t i = 0; i < size; ++i) {
    if (made_[i] == old[i] || (std::isnan(made_[i]) && std::isnan(old[i]))) continue;
    ++change.changed;
    const double error = std::abs((double{made_[i]} - old[i]) / old[i]);
    if (std::isfinite(error)) change.largest_error = std::max(change.largest_error, error);
  }
}

}  // namespace octofold::model
