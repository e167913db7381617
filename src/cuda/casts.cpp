#include "cuda/casts.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/scale_layout.h"
#include "cuda/cast_views.h"
#include "cuda/group_check.h"
#include "kernels/cast/config/params.h"
#include "plan/cast.h"

namespace octofold::cuda {
namespace {

using plan::CastProblem;
using plan::ConvertProblem;

struct Sizes {
  std::int64_t rows, cols;
};

// Of the matrix that is cast.
Sizes sizes_of(const CastInput& input, const CastTargets& out) {
  const std::int64_t rows = input.sources ? input.sources->shape[0] : input.x.shape[0];
  if (out.rows) return {rows, out.rows->data.shape[1]};
  return {rows, out.transposed->data.shape[0] / out.matrices.value_or(1)};
}

// Whether rows of 1x128 are written beside a transpose of another granularity.
bool is_mixed(const CastTargets& out, Granularity transposed) {
  return out.rows && out.transposed && out.rows->granularity == Granularity::kBlock1x128 &&
         out.transposed->granularity == transposed;
}

// Those that an int32 can name.
unsigned places_of(const CastInput& input) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const std::int64_t rows = input.x.shape[0];
  return static_cast<unsigned>(rows > kMost / input.slots ? kMost : rows * input.slots);
}

// Below each other, at most those that a launch may have.
int tiles_of(std::int64_t matrix_rows) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return static_cast<int>(std::min(core::ceil_divide(matrix_rows, kScaleBlock), kMost));
}

const int* ints_of(const std::optional<TensorView>& vector) {
  return vector ? static_cast<const int*>(vector->data) : nullptr;
}

config::ColumnReductions reductions_of(const ColumnTargets& out) {
  return {.sums = out.sums.has_value(), .amax = out.amax.has_value()};
}

config::ColumnReductionParams columns_of(const ColumnTargets& out, const Sizes& sizes) {
  const auto floats_of = [](const std::optional<MutableTensorView>& tensor) {
    return tensor ? static_cast<float*>(tensor->data) : nullptr;
  };
  float* workspace = floats_of(out.workspace);
  const std::int64_t partial = core::ceil_divide(sizes.rows, config::kReducedRows) * sizes.cols;
  return {.partial_sums = out.sums ? workspace : nullptr,
          .partial_amax = !out.amax  ? nullptr
                          : out.sums ? workspace + partial
                                     : workspace,
          .sums = floats_of(out.sums),
          .amax = floats_of(out.amax)};
}

// `scale` is read where the problem is scaled.
void convert(Device& device, ConvertProblem problem, core::ScaleAccess<const float> scale,
             const float* channel_scale, const TensorView& x, const MutableTensorView& out,
             Stream stream) {
  problem.rows = x.shape[0];
  problem.cols = x.shape[1];
  problem.in = x.dtype;
  problem.out = out.dtype;
  const int vector = config::ConvertConfig{.in = problem.in, .out = problem.out}.vector();
  problem.is_aligned =
      is_aligned(x, vector * size_of(x.dtype)) && is_aligned(out, vector * size_of(out.dtype));
  const config::ConvertParams params{.x = x.data,
                                     .x_stride = x.strides[0],
                                     .out = out.data,
                                     .out_stride = out.strides[0],
                                     .rows = x.shape[0],
                                     .cols = x.shape[1],
                                     .scale = scale.data,
                                     .scale_row_stride = scale.row_stride,
                                     .scale_col_stride = scale.col_stride,
                                     .channel_scale = channel_scale};
  device.prepared(problem, [&] { return plan::plan_convert(problem, device.gpu()); })
      .launch(stream, &params);
}

}  // namespace

void quantize(Device& device, const CastInput& input, const CastTargets& out,
              const config::CastFormat& format, ScaleSource scales, Stream stream) {
  const Sizes sizes = sizes_of(input, out);
  const auto [rows, cols] = sizes;
  const bool two_level =
      (out.rows && out.rows->channel_scale) || (out.transposed && out.transposed->channel_scale);
  const std::int64_t groups = out.offsets ? out.offsets->shape[0] - 1 : 0;
  const std::int64_t matrices = out.matrices.value_or(1), matrix_rows = rows / matrices;
  const int matrix_tiles = tiles_of(matrix_rows);
  const auto by_matrix_tiles =
      config::Divisor::of(static_cast<unsigned>(std::max(matrix_tiles, 1)));
  const CastProblem problem{
      .rows = rows,
      .cols = cols,
      .format = format,
      .source = input.source,
      .to_rows = out.rows.has_value(),
      .to_transposed = out.transposed.has_value(),
      .transposed_by_channel = is_mixed(out, Granularity::kChannel),
      .transposed_by_squares = !two_level && is_mixed(out, Granularity::kBlock128x128),
      .two_level = two_level,
      .scales_given = scales == ScaleSource::kGiven,
      .columns = reductions_of(out.columns),
      .groups = groups,
      .matrices = matrices,
      .x_is_aligned = is_aligned(input.x, input.source.bytes_of(0, format.vector())) &&
                      is_aligned(input.gradient, 16) && input.norm_is_aligned,
      .codes_are_aligned = codes_are_aligned(out.rows) && codes_are_aligned(out.transposed)};
  const config::CastParams params{.x = input.x.data,
                                  .x_stride = input.x.strides[0],
                                  .x_scale = input.x_scale.data,
                                  .x_scale_row_stride = input.x_scale.row_stride,
                                  .x_scale_col_stride = input.x_scale.col_stride,
                                  .gradient = input.gradient.data,
                                  .gradient_stride = input.gradient.strides[0],
                                  .rstd = input.rstd,
                                  .mean = input.mean,
                                  .norm = input.norm,
                                  .rows = rows,
                                  .cols = cols,
                                  .row_target = target_of(out.rows),
                                  .transposed_target = target_of(out.transposed),
                                  .columns = columns_of(out.columns, sizes),
                                  .row_channel_scale = channel_scale_of(out.rows),
                                  .transposed_channel_scale = channel_scale_of(out.transposed),
                                  .offsets = ints_of(out.offsets),
                                  .groups = static_cast<int>(groups),
                                  .sources = ints_of(input.sources),
                                  .factors = floats_of(input.factors),
                                  .places = places_of(input),
                                  .slots = config::Divisor::of(static_cast<unsigned>(input.slots)),
                                  .matrices = matrices,
                                  .matrix_rows = matrix_rows,
                                  .matrix_tiles = matrix_tiles,
                                  .by_matrix_tiles = by_matrix_tiles};
  if (out.offsets) {
    check_offsets(device, "quantize", "offsets", params.offsets, groups + 1, rows, stream);
  }
  device.prepared(problem, [&] { return plan::plan_cast(problem, device.gpu()); })
      .launch(stream, &params);
}

void dequantize(Device& device, const ScaledTensorView& x, const MutableTensorView& out,
                Stream stream) {
  convert(device,
          {.scaled = true,
           .granularity = x.granularity,
           .has_channel_scale = x.channel_scale.has_value()},
          core::scale_access(x), floats_of(x.channel_scale), x.data, out, stream);
}

void convert(Device& device, const TensorView& x, const MutableTensorView& out, Overflow overflow,
             Stream stream) {
  convert(device, {.saturate = overflow == Overflow::kSaturate}, {}, nullptr, x, out, stream);
}

}  // namespace octofold::cuda
