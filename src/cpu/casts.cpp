#include "cpu/casts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/scale_layout.h"
#include "cpu/convert.h"
#include "cpu/parallel.h"
#include "cpu/scale.h"
#include "kernels/shared/channel_scale.h"
#include "kernels/shared/fp8_format.h"

namespace octofold::cpu {
namespace {

// Elements are handled in runs along a row, through a buffer that stays in the L1 cache.
constexpr std::int64_t kRun = 512;
using Run = std::array<float, kRun>;

struct Rectangle {
  std::int64_t row, rows, col, cols;
};

const config::Fp8Format& format_of(DType dtype) {
  return dtype == DType::kE4M3 ? config::kE4M3Format : config::kE5M2Format;
}

// What is cast: x, of two-level scales divided by the factors of its rows.
struct Source {
  TensorView x;
  const float* factors;

  Source(const TensorView& x_, const float* factors_ = nullptr) : x(x_), factors(factors_) {}
};

// Calls body(row, col, values, count) for the runs that make up a rectangle of x, in FP32.
template <typename Body>
void for_each_run(const Source& source, const Rectangle& area, Body&& body) {
  const TensorView& x = source.x;
  Run run;
  for (std::int64_t row = area.row; row < area.row + area.rows; ++row) {
    for (std::int64_t col = area.col; col < area.col + area.cols; col += kRun) {
      const std::int64_t count = std::min(kRun, area.col + area.cols - col);
      load(x.data, x.dtype, row * x.strides[0] + col * x.strides[1], x.strides[1], count,
           run.data());
      if (source.factors != nullptr) {
        const float inverse = 1.0f / config::channel_factor(source.factors[row]);
        for (std::int64_t i = 0; i < count; ++i) run[static_cast<std::size_t>(i)] *= inverse;
      }
      body(row, col, run.data(), count);
    }
  }
}

// The largest magnitude, as bits: in that order a NaN exceeds infinity, so it is handed on.
std::uint32_t amax_bits(const Source& x, const Rectangle& area) {
  std::uint32_t amax = 0;
  for_each_run(x, area, [&](auto, auto, const float* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      amax = std::max(amax, std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu);
    }
  });
  return amax;
}

void encode(const Source& x, const Rectangle& area, const UnitCast& cast,
            const MutableTensorView& codes, Overflow overflow) {
  for_each_run(x, area, [&](std::int64_t row, std::int64_t col, float* values, std::int64_t count) {
    cast.apply({values, static_cast<std::size_t>(count)});
    store(values, count, codes.data, codes.dtype, row * codes.strides[0] + col, overflow);
  });
}

// Row bands are what threads share: as high as a unit, so that they are counted as rows of scales
// are. Where one scale is for all, any height will do.
struct Bands {
  std::int64_t height;
  std::int64_t count;
  std::int64_t rows;
  std::int64_t cols;

  std::int64_t work() const { return height * cols; }
  Rectangle rectangle(std::int64_t band) const {
    return {band * height, std::min(height, rows - band * height), 0, cols};
  }
};

Bands bands_of(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  const std::int64_t wanted = granularity == Granularity::kTensor
                                  ? std::min<std::int64_t>(rows, kScaleBlock)
                                  : core::unit_size(granularity, rows, cols).rows;
  const std::int64_t height = std::max<std::int64_t>(wanted, 1);
  return {height, core::ceil_divide(rows, height), rows, cols};
}

UnitCast computed_cast(const config::CastFormat& format, std::uint32_t amax) {
  return unit_cast(format.rule, format.in, format_of(format.out), format.power_of_two,
                   std::bit_cast<float>(amax));
}

// One cast for everything.
UnitCast whole_tensor_cast(const Source& x, const Bands& bands, const config::CastFormat& format) {
  std::vector<std::uint32_t> amax(static_cast<std::size_t>(bands.count), 0);
  parallel_for(bands.count, bands.work(), [&] {
    return [&](std::int64_t band) {
      amax[static_cast<std::size_t>(band)] = amax_bits(x, bands.rectangle(band));
    };
  });
  const std::uint32_t largest = amax.empty() ? 0 : *std::ranges::max_element(amax);
  return computed_cast(format, largest);
}

// A run of columns at a time, over all rows in their order.
void reduce_columns(const TensorView& x, const ColumnTargets& out) {
  if (!out.sums && !out.amax) return;
  const std::int64_t rows = x.shape[0], cols = x.shape[1];
  parallel_for(core::ceil_divide(cols, kRun), rows * kRun, [&] {
    return [&](std::int64_t index) {
      const std::int64_t first = index * kRun, width = std::min(kRun, cols - first);
      std::array<double, kRun> sums{};
      std::array<std::uint32_t, kRun> amax{};
      for_each_run(x, {0, rows, first, width}, [&](auto, auto, const float* values, auto count) {
        for (std::int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<std::size_t>(i);
          sums[at] += static_cast<double>(values[i]);
          amax[at] = std::max(amax[at], std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu);
        }
      });
      for (std::int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (out.sums) static_cast<float*>(out.sums->data)[first + i] = static_cast<float>(sums[at]);
        if (out.amax) {
          static_cast<float*>(out.amax->data)[first + i] = std::bit_cast<float>(amax[at]);
        }
      }
    };
  });
}

}  // namespace

void quantize(const TensorView& matrix, const MutableScaledTensorView& out,
              config::CastFormat format, ScaleSource scales) {
  Source x = matrix;
  if (out.channel_scale) {
    x.factors = static_cast<const float*>(out.channel_scale->data);
    format.in = DType::kFloat32;  // of the quotients
  }
  const std::int64_t rows = matrix.shape[0], cols = matrix.shape[1];
  const core::UnitSize unit = core::unit_size(format.granularity, rows, cols);
  const core::ScaleGrid grid = core::scale_grid(format.granularity, rows, cols);
  const core::ScaleAccess<float> scale = core::scale_access(out);
  const Bands bands = bands_of(format.granularity, rows, cols);
  const bool given = scales == ScaleSource::kGiven;
  const Overflow overflow = format.saturate ? Overflow::kSaturate : Overflow::kNan;

  // The amax of all bands must be known before the first code is written.
  if (format.granularity == Granularity::kTensor) {
    const UnitCast cast = given ? given_cast(format.rule, format.in, scale(0, 0))
                                : whole_tensor_cast(x, bands, format);
    if (!given) scale(0, 0) = cast.scale;
    parallel_for(bands.count, bands.work(), [&] {
      return [&](std::int64_t band) { encode(x, bands.rectangle(band), cast, out.data, overflow); };
    });
    return;
  }

  parallel_for(bands.count, bands.work(), [&] {
    return [&](std::int64_t band) {
      for (std::int64_t unit_col = 0; unit_col < grid.cols; ++unit_col) {
        Rectangle area = bands.rectangle(band);
        area.col = unit_col * unit.cols;
        area.cols = std::min(unit.cols, cols - area.col);
        const UnitCast cast = given ? given_cast(format.rule, format.in, scale(band, unit_col))
                                    : computed_cast(format, amax_bits(x, area));
        if (!given) scale(band, unit_col) = cast.scale;
        encode(x, area, cast, out.data, overflow);
      }
    };
  });
}

namespace {

TensorView transposed(TensorView x) {
  std::swap(x.shape[0], x.shape[1]);
  std::swap(x.strides[0], x.strides[1]);
  return x;
}

TensorView rows_of(TensorView x, std::int64_t begin, std::int64_t end) {
  const auto* data = static_cast<const std::byte*>(x.data);
  if (begin < end) x.data = data + begin * x.strides[0] * size_of(x.dtype);
  x.shape[0] = end - begin;
  return x;
}

// Columns from a multiple of 128 on, with the scales that are theirs alone.
MutableScaledTensorView columns_of(MutableScaledTensorView out, std::int64_t begin,
                                   std::int64_t count) {
  out.data.data = static_cast<std::uint8_t*>(out.data.data) + begin;
  out.data.shape[1] = count;
  if (!varies_along_k(out.granularity)) return out;
  const std::int64_t units = begin / kScaleBlock;
  out.scale.data = static_cast<float*>(out.scale.data) + units * out.scale.strides[1];
  out.scale.shape[1] = core::ceil_divide(count, kScaleBlock);
  return out;
}

// The transpose of rows in groups, in the K-group layout. Scales that are for all groups are found
// by a cast without anything between them.
void quantize_groups(const TensorView& x, const MutableScaledTensorView& out,
                     std::span<const std::int32_t> offsets, const config::CastFormat& format,
                     ScaleSource scales) {
  const std::int64_t features = x.shape[1], rows = offsets.back();
  const bool shares_scales = !varies_along_k(out.granularity);
  std::vector<std::uint8_t> together;
  if (shares_scales) {
    together.resize(static_cast<std::size_t>(features * rows));
    MutableScaledTensorView all = out;
    all.data = matrix(static_cast<void*>(together.data()), out.data.dtype, features, rows);
    quantize(transposed(rows_of(x, 0, rows)), all, format, scales);
  }
  for (std::size_t group = 0; group + 1 < offsets.size(); ++group) {
    const std::int64_t begin = offsets[group], count = offsets[group + 1] - begin;
    const std::int64_t column =
        kScaleBlock * (begin / kScaleBlock + static_cast<std::int64_t>(group));
    const MutableScaledTensorView of_group = columns_of(out, column, count);
    if (!shares_scales && count > 0) {
      quantize(transposed(rows_of(x, begin, begin + count)), of_group, format, scales);
    }
    for (std::int64_t feature = 0; feature < features; ++feature) {
      auto* codes = static_cast<std::uint8_t*>(of_group.data.data) + feature * out.data.strides[0];
      if (shares_scales) std::copy_n(together.data() + feature * rows + begin, count, codes);
      std::fill(codes + count, codes + core::ceil_divide(count, kScaleBlock) * kScaleBlock, 0);
    }
  }
}

void quantize_stack(const TensorView& x, const CastTargets& out, const config::CastFormat& format,
                    ScaleSource scales) {
  const std::int64_t matrices = *out.matrices, rows = x.shape[0] / matrices;
  for (std::int64_t i = 0; i < matrices; ++i) {
    CastTargets one;
    if (out.rows) one.rows = core::matrix_of_stack(*out.rows, matrices, i);
    if (out.transposed) one.transposed = core::matrix_of_stack(*out.transposed, matrices, i);
    quantize(rows_of(x, i * rows, (i + 1) * rows), one, format, scales);
  }
}

}  // namespace

void quantize(const TensorView& x, const CastTargets& out, const config::CastFormat& format,
              ScaleSource scales) {
  if (out.matrices) return quantize_stack(x, out, format, scales);
  reduce_columns(x, out.columns);
  config::CastFormat of_transpose = format;
  if (out.transposed) of_transpose.granularity = out.transposed->granularity;
  if (out.offsets) {
    const std::span offsets(static_cast<const std::int32_t*>(out.offsets->data),
                            static_cast<std::size_t>(out.offsets->shape[0]));
    const std::int64_t rows = offsets.back();
    if (out.rows) quantize(rows_of(x, 0, rows), row_slice(*out.rows, 0, rows), format, scales);
    return quantize_groups(x, *out.transposed, offsets, of_transpose, scales);
  }
  if (out.rows) quantize(x, *out.rows, format, scales);
  if (out.transposed) quantize(transposed(x), *out.transposed, of_transpose, scales);
}

void dequantize(const ScaledTensorView& x, const MutableTensorView& out) {
  const std::int64_t rows = x.data.shape[0], cols = x.data.shape[1];
  const core::UnitSize unit = core::unit_size(x.granularity, rows, cols);
  const core::ScaleAccess<const float> scale = core::scale_access(x);
  const auto* factors =
      x.channel_scale ? static_cast<const float*>(x.channel_scale->data) : nullptr;
  parallel_for(rows, cols, [&] {
    return [&](std::int64_t row) {
      const float outer = factors == nullptr ? 1.0f : config::channel_factor(factors[row]);
      for (std::int64_t col = 0; col < cols; col += unit.cols) {
        const float inner = scale(row / unit.rows, col / unit.cols);
        const Rectangle area{row, 1, col, std::min(unit.cols, cols - col)};
        for_each_run(x.data, area, [&](auto, std::int64_t first, float* values, auto count) {
          for (std::int64_t i = 0; i < count; ++i) values[i] = values[i] * inner * outer;
          store(values, count, out.data, out.dtype, row * out.strides[0] + first,
                Overflow::kSaturate);
        });
      }
    };
  });
}

}  // namespace octofold::cpu
