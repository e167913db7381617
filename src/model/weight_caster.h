// Casts of matrices that lie on disk, a tile at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "octofold/cast.h"

#include "model/matrix_tiles.h"
#include "model/weight_scales.h"

namespace octofold::model {

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
  void cast_tile(const CastMatrix& matrix, const Tile& tile, ScaleSource source,
                 WeightScales& scales, bool again);

  Format format_;
  std::vector<std::byte> codes_;
  std::vector<float> tile_scales_;
};

}  // namespace octofold::model
