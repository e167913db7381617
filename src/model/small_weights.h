// Weights in formats with a scale for a few values of a row (MXFP4, NVFP4, MXFP8): their table, and
// their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "octofold/checkpoint.h"
#include "octofold/format.h"
#include "octofold/tensor.h"

#include "model/checkpoint_source.h"
#include "model/weights.h"

namespace octofold::model {

/// A row of the table of formats.
struct WeightFormatRow {
  WeightFormat id;
  std::string_view name;
  std::int64_t bits;              ///< of a code: four (e2m1, two in a byte) or eight (e4m3)
  std::int64_t values_per_scale;  ///< 0: not such a format
  std::string_view scale_dtype;   ///< E8M0 is also spelled U8
  bool has_second_scale;
};

const WeightFormatRow& row_of(WeightFormat format);
/// True if a tensor's dtype is one of codes, or of scales, of the format.
bool takes_codes(const WeightFormatRow& format, std::string_view dtype);
bool takes_scales(const WeightFormatRow& format, std::string_view dtype);

/// Codes and their scales as values in FP32, without the second scale. All are of whole rows of
/// blocks, end to end.
void decode(const WeightFormatRow& format, std::span<const std::byte> codes,
            std::span<const std::byte> scales, std::span<float> values);

/// The casts of such weights: a scale is the least power of two by which the largest magnitude is a
/// code. (The rule of DeepGEMM has a least scale, below which small values would get lost.)
inline constexpr Format kExactCast{.rule = Rule::kTransformerEngine, .power_of_two = true};

/// The values of a weight in a file.
class SmallValues {
 public:
  /// Both must outlive this.
  SmallValues(TensorBytes& data, const CheckpointWeight& weight)
      : data_(data), weight_(weight), format_(row_of(weight.format)) {}

  /// The values of a tile of one of the matrices, in memory until the next call, without the second
  /// scale. Throws Error(kBadFormat) that names file and tensor where some are not finite.
  TensorView of(std::int64_t index, const Tile& tile);
  /// The bytes that the last tile was read from.
  std::int64_t bytes_read() const;

 private:
  void read(const CheckpointTensor& tensor, std::int64_t index, const Tile& tile,
            std::int64_t values_per_byte, std::vector<std::byte>& bytes);

  TensorBytes& data_;
  const CheckpointWeight& weight_;
  const WeightFormatRow& format_;
  std::vector<std::byte> code_bytes_;
  std::vector<std::byte> scale_bytes_;
  std::vector<float> values_;
};

/// The multipliers that belong to each matrix of such a weight: its second scale, or 1. Throws
/// Error(kBadFormat) for one that is no number above zero.
std::vector<float> second_scales(TensorBytes& data, const CheckpointWeight& weight);

/// The change that a cast would make to a weight in a small format.
WeightChange change_by(const CheckpointWeight& weight, Granularity granularity);

}  // namespace octofold::model
