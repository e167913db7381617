#include "model/small_weights.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"
#include "model/json_text.h"
#include "model/scale_names.h"

namespace octofold::model {
namespace {

constexpr std::string_view kE8M0 = "F8_E8M0", kE4M3 = "F8_E4M3", kBytes = "U8";

/// In the order of the enumerators.
constexpr std::array<WeightFormatRow, 4> kFormats = {{
    {WeightFormat::kFp8, "fp8", 8, 0, "", false},
    {WeightFormat::kMxfp4, "mxfp4", 4, 32, kE8M0, false},
    {WeightFormat::kNvfp4, "nvfp4", 4, 16, kE4M3, true},
    {WeightFormat::kMxfp8, "mxfp8", 8, 32, kE8M0, false},
}};

/// e2m1 (OCP Microscaling Formats 1.0, section 5.3.3), by code.
constexpr std::array<float, 16> kE2M1 = {0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                         -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};

}  // namespace

const WeightFormatRow& row_of(WeightFormat format) {
  const auto index = static_cast<std::size_t>(format);
  if (index < kFormats.size()) return kFormats[index];
  core::fail(ErrorCode::kInvalidArgument, "expected a format of weights, got the number {}", index);
}

bool takes_codes(const WeightFormatRow& format, std::string_view dtype) {
  return dtype == (format.bits == 4 ? kBytes : kE4M3);
}

bool takes_scales(const WeightFormatRow& format, std::string_view dtype) {
  return dtype == format.scale_dtype || (format.scale_dtype == kE8M0 && dtype == kBytes);
}

void decode(const WeightFormatRow& format, std::span<const std::byte> codes,
            std::span<const std::byte> scales, std::span<float> values) {
  const std::vector<float> factors = floats_of(format.scale_dtype, scales);
  if (format.bits == 8) {
    const std::vector<float> wide = floats_of(kE4M3, codes);
    std::copy(wide.begin(), wide.end(), values.begin());
  } else {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const auto both = std::to_integer<std::size_t>(codes[i]);
      values[2 * i] = kE2M1[both & 15];
      values[2 * i + 1] = kE2M1[both >> 4];
    }
  }
  const auto block = static_cast<std::size_t>(format.values_per_scale);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    for (float& value : values.subspan(i * block, block)) value *= factors[i];
  }
}

TensorView SmallValues::of(std::int64_t index, const Tile& tile) {
  read(weight_.codes, index, tile, 8 / format_.bits, code_bytes_);
  read(*weight_.scale, index, tile, format_.values_per_scale, scale_bytes_);
  values_.resize(tile.size());
  decode(format_, code_bytes_, scale_bytes_, values_);
  if (!all_finite(values_)) {
    core::fail(
        ErrorCode::kBadFormat,
        "{}: tensor {}: expected scales by which the codes of {} are numbers, got some of NaN "
        "or infinity",
        weight_.scale->file.string(), quote(weight_.scale->name), quote(weight_.codes.name));
  }
  return matrix(std::as_const(values_).data(), DType::kFloat32, tile.rows, tile.cols);
}

std::int64_t SmallValues::bytes_read() const {
  return std::ssize(code_bytes_) + std::ssize(scale_bytes_);
}

void SmallValues::read(const CheckpointTensor& tensor, std::int64_t index, const Tile& tile,
                       std::int64_t values_per_byte, std::vector<std::byte>& bytes) {
  // Tiles begin at multiples of 128 columns, and rows are of whole blocks.
  const Tile part{tile.row, tile.col / values_per_byte, tile.rows, tile.cols / values_per_byte,
                  tile.matrix_cols / values_per_byte};
  const std::int64_t before = index * tensor.bytes / MatrixSizes(weight_.shape).matrices;
  bytes.resize(part.size());
  for_each_run(part, std::span(bytes), [&](std::int64_t offset, std::span<std::byte> run) {
    data_.read(tensor, before + offset, run);
  });
}

std::vector<float> second_scales(TensorBytes& data, const CheckpointWeight& weight) {
  std::vector<float> scales(MatrixSizes(weight.shape).matrices, 1.0F);
  if (!weight.second_scale) return scales;
  const CheckpointTensor& tensor = *weight.second_scale;
  const std::vector<float> said = floats_of(tensor.dtype, data.read(tensor));
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const float scale = said[said.size() == 1 ? 0 : i];
    scales[i] = weight.second_scale_divides ? 1 / scale : scale;
    if (std::isnormal(scale) && std::isnormal(scales[i]) && scale > 0) continue;
    core::fail(ErrorCode::kBadFormat, "{}: tensor {}: expected a number above zero, got {}",
               tensor.file.string(), quote(tensor.name), scale);
  }
  return scales;
}

WeightChange change_by(const CheckpointWeight& weight, Granularity granularity) {
  const MatrixSizes sizes(weight.shape);
  TensorBytes data;
  SmallValues values(data, weight);
  WeightCaster caster(kExactCast);
  WeightChange change;
  bool finite = true;
  for (std::int64_t index = 0; index < sizes.matrices; ++index) {
    caster.cast({sizes.rows, sizes.cols, granularity, sizeof(float),
                 [&](const Tile& tile, bool) { return values.of(index, tile); },
                 [](std::int64_t, std::span<const std::byte>) {}, &change},
                finite);
  }
  return change;
}

}  // namespace octofold::model

namespace octofold {

std::string_view name(WeightFormat format) { return model::row_of(format).name; }

std::int64_t values_per_scale(WeightFormat format) {
  return model::row_of(format).values_per_scale;
}

}  // namespace octofold
