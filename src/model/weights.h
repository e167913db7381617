// Weights that lie on disk, a tile at a time: their scales in memory, and their casts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "octofold/cast.h"
#include "octofold/checkpoint.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

namespace octofold::model {

/// Data in memory at a time: large enough for all threads of quantize(), and 128 rows of 65536
/// floats, so that all but the widest matrices are read and written in one piece per tile.
inline constexpr std::int64_t kTileBytes = 32 << 20;

/// A rectangle of a row-major matrix.
struct Tile {
  std::int64_t row;
  std::int64_t col;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t matrix_cols;

  std::int64_t size() const { return rows * cols; }
};

/// Calls transfer(offset in the matrix in bytes, part of `buffer`) for the contiguous runs of a
/// tile whose rows lie end to end in `buffer`.
template <typename Byte, typename Transfer>
void for_each_run(const Tile& tile, std::span<Byte> buffer, Transfer transfer) {
  const std::int64_t element_bytes = static_cast<std::int64_t>(buffer.size()) / tile.size();
  const std::int64_t runs = tile.cols == tile.matrix_cols ? 1 : tile.rows;
  const std::size_t run_bytes = buffer.size() / runs;
  for (std::int64_t i = 0; i < runs; ++i) {
    transfer(((tile.row + i) * tile.matrix_cols + tile.col) * element_bytes,
             buffer.subspan(i * run_bytes, run_bytes));
  }
}

/// Numbers of F32, BF16, F16, F8_E4M3 or F8_E8M0 (a power of two: 2^(byte - 127), 255 being NaN),
/// exactly.
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

/// The sizes of a matrix, the source of its values and the destination of its codes.
struct CastMatrix {
  std::int64_t rows;
  std::int64_t cols;
  Granularity granularity;
  /// Bytes of each value that `values` gives.
  std::int64_t value_bytes;
  /// The values of a tile, in memory until the next call. Tiles come in order, for scales of a
  /// tensor twice: `again` says that their bytes were counted before.
  std::function<TensorView(const Tile& tile, bool again)> values;
  /// Codes of a tile, from an offset in bytes in the matrix on.
  std::function<void(std::int64_t offset, std::span<const std::byte> codes)> codes;
  /// The changes to values of FP32 are added here.
  WeightChange* change = nullptr;
};

class WeightCaster {
 public:
  /// `format`: rule and power_of_two of all casts.
  explicit WeightCaster(const Format& format) : format_(format) {}

  /// Writes all codes, in e4m3, and returns the scales. finite: set to false where codes or scales
  /// are not.
  WeightScales cast(const CastMatrix& matrix, bool& finite);

 private:
  /// The scale of the whole matrix: the largest that any tile would have, as a scale grows with
  /// the largest magnitude, NaN before all.
  float tensor_scale(const CastMatrix& matrix, std::span<const Tile> tiles);
  /// Returns the values of the tile.
  TensorView cast_tile(const CastMatrix& matrix, const Tile& tile, ScaleSource source,
                       WeightScales& scales, bool again);
  /// Compares the codes of the tile that was cast last with its values.
  void count(const TensorView& values, const Tile& tile, const WeightScales& scales,
             WeightChange& change);

  Format format_;
  std::vector<std::byte> codes_;
  std::vector<float> tile_scales_;
  std::vector<float> made_;
};

}  // namespace octofold::model
