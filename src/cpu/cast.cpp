#include "cpu/cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "core/scale_layout.h"
#include "cpu/activations.h"
#include "cpu/backend.h"
#include "cpu/matrices.h"
#include "cpu/parallel.h"
#include "cpu/scale.h"
#include "kernels/shared/cast_rule.h"
#include "kernels/shared/group_bounds.h"

namespace octofold::cpu {
namespace {

const config::Fp8Format& format_of(DType dtype) {
  return dtype == DType::kE4M3 ? config::kE4M3Format : config::kE5M2Format;
}

// The largest magnitude, as bits: in that order a NaN exceeds infinity, so it is handed on.
std::uint32_t amax_bits(const TensorView& x, const Rectangle& area) {
  std::uint32_t amax = 0;
  for_each_run(x, area, [&](auto, auto, const float* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      amax = std::max(amax, std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu);
    }
  });
  return amax;
}

void encode(const TensorView& x, const Rectangle& area, const UnitCast& cast,
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

// The cast of unit `row`, whose amax is given; else amax() finds its bits.
template <typename Amax>
UnitCast cast_of_unit(const config::CastFormat& format, const CastTarget& out, std::int64_t row,
                      Amax&& amax) {
  if (!out.amax) return computed_cast(format, amax());
  const float given = core::amax_access(out)(row, 0);
  return computed_cast(format, std::bit_cast<std::uint32_t>(given) & 0x7FFFFFFFu);
}

// One for everything.
std::uint32_t amax_of_tensor(const TensorView& x, const Bands& bands) {
  std::vector<std::uint32_t> amax(static_cast<std::size_t>(bands.count), 0);
  parallel_for(bands.count, bands.work(), [&] {
    return [&](std::int64_t band) {
      amax[static_cast<std::size_t>(band)] = amax_bits(x, bands.rectangle(band));
    };
  });
  return amax.empty() ? 0 : *std::ranges::max_element(amax);
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

void cast_matrix(const TensorView& x, const CastTarget& out, const config::CastFormat& format) {
  const std::int64_t rows = x.shape[0], cols = x.shape[1];
  const Granularity granularity = out.format.granularity;
  const core::UnitSize unit = core::unit_size(granularity, rows, cols);
  const core::ScaleGrid grid = core::scale_grid(granularity, rows, cols);
  const core::ScaleAccess<float> scale = core::scale_access(out);
  const Bands bands = bands_of(granularity, rows, cols);
  const bool given = out.scales == ScaleSource::kGiven;
  const Overflow overflow = format.saturate ? Overflow::kSaturate : Overflow::kNan;

  // The amax of all bands must be known before the first code is written.
  if (granularity == Granularity::kTensor) {
    const UnitCast cast =
        given ? given_cast(format.rule, format.in, scale(0, 0))
              : cast_of_unit(format, out, 0, [&] { return amax_of_tensor(x, bands); });
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
        const UnitCast cast =
            given ? given_cast(format.rule, format.in, scale(band, unit_col))
                  : cast_of_unit(format, out, band, [&] { return amax_bits(x, area); });
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

// Columns from a multiple of 128 on, with the scales that are theirs alone.
CastTarget columns_of(CastTarget out, std::int64_t begin, std::int64_t count) {
  out.data.data = static_cast<std::uint8_t*>(out.data.data) + begin;
  out.data.shape[1] = count;
  if (!varies_along_k(out.format.granularity)) return out;
  const std::int64_t units = begin / kScaleBlock;
  out.scale.data = static_cast<float*>(out.scale.data) + units * out.scale.strides[1];
  out.scale.shape[1] = core::ceil_divide(count, kScaleBlock);
  return out;
}

// The transpose of rows in groups, in the K-group layout. Scales that are for all groups are found
// by a cast without anything between them.
void cast_groups(const TensorView& x, const CastTarget& out, std::span<const std::int32_t> offsets,
                 GroupLayout layout, const config::CastFormat& format) {
  const std::int64_t features = x.shape[1], rows = offsets.back();
  const bool shares_scales = !varies_along_k(out.format.granularity);
  std::vector<std::uint8_t> together;
  if (shares_scales) {
    together.resize(static_cast<std::size_t>(features * rows));
    CastTarget all = out;
    all.data = matrix(static_cast<void*>(together.data()), out.data.dtype, features, rows);
    cast_matrix(transposed(rows_of(x, 0, rows)), all, format);
  }
  for (std::size_t group = 0; group + 1 < offsets.size(); ++group) {
    const std::int64_t begin = offsets[group], count = offsets[group + 1] - begin;
    const std::int64_t column =
        kScaleBlock * config::blocks_before_group(layout, begin, static_cast<std::int64_t>(group));
    const CastTarget of_group = columns_of(out, column, count);
    if (!shares_scales && count > 0) {
      cast_matrix(transposed(rows_of(x, begin, begin + count)), of_group, format);
    }
    for (std::int64_t feature = 0; feature < features; ++feature) {
      auto* codes = static_cast<std::uint8_t*>(of_group.data.data) + feature * out.data.strides[0];
      if (shares_scales) std::copy_n(together.data() + feature * rows + begin, count, codes);
      std::fill(codes + count, codes + core::ceil_divide(count, kScaleBlock) * kScaleBlock, 0);
    }
  }
}

void cast_stack(const TensorView& x, const CastTargets& out, const config::CastFormat& format) {
  const std::int64_t matrices = *out.matrices, rows = x.shape[0] / matrices;
  const auto* used = out.used ? static_cast<const std::int32_t*>(out.used->data) : nullptr;
  for (std::int64_t i = 0; i < matrices; ++i) {
    if (used != nullptr && used[i + 1] <= used[i]) continue;
    CastTargets one;
    if (out.rows) one.rows = core::matrix_of_stack(*out.rows, matrices, i);
    if (out.transposed) one.transposed = core::matrix_of_stack(*out.transposed, matrices, i);
    cast_values(rows_of(x, i * rows, (i + 1) * rows), one, format);
  }
}

}  // namespace

void cast_values(const TensorView& x, const CastTargets& out, const config::CastFormat& format) {
  if (out.matrices) return cast_stack(x, out, format);
  reduce_columns(x, out.columns);
  if (out.offsets) {
    const std::span offsets(static_cast<const std::int32_t*>(out.offsets->data),
                            static_cast<std::size_t>(out.offsets->shape[0]));
    const std::int64_t rows = offsets.back();
    if (out.rows) cast_matrix(rows_of(x, 0, rows), row_slice(*out.rows, 0, rows), format);
    return cast_groups(x, *out.transposed, offsets, out.group_layout, format);
  }
  if (out.rows) cast_matrix(x, *out.rows, format);
  if (out.transposed) cast_matrix(transposed(x), *out.transposed, format);
}

namespace {

// The numbers of what an activation is of, in `dtype`.
OwnedMatrix numbers_of(const std::variant<TensorView, ScaledTensorView>& x, DType dtype) {
  if (const auto* numbers = std::get_if<TensorView>(&x)) return {{}, *numbers};
  const auto& codes = std::get<ScaledTensorView>(x);
  OwnedMatrix result = OwnedMatrix::make(codes.data.shape[0], codes.data.shape[1], dtype);
  dequantize(codes, result.writable());
  return result;
}

OwnedMatrix values_of(const TensorView& x, DType /*dtype*/) { return {{}, x}; }

OwnedMatrix values_of(const Activated& source, DType dtype) {
  const OwnedMatrix x = numbers_of(source.x, dtype);
  return activation(x.view, source.activation, source.layout);
}

OwnedMatrix values_of(const ActivationGradient& source, DType dtype) {
  const OwnedMatrix x = numbers_of(source.x, dtype);
  return activation_gradient(source.gradient, x.view, source.activation, source.layout);
}

OwnedMatrix values_of(const Normed& source, DType dtype) {
  OwnedMatrix y = OwnedMatrix::make(source.x.shape[0], source.x.shape[1], dtype);
  normalize(source, y.writable());
  return y;
}

OwnedMatrix values_of(const GatheredRows& source, DType /*dtype*/) { return gathered(source); }

// A target of rows in memory of its own, of which some rows are then written to the one it is for.
class RowsAside {
 public:
  explicit RowsAside(const CastTarget& out)
      : out_(out),
        view_(out),
        grid_(core::scale_grid(out.format.granularity, out.data.shape[0], out.data.shape[1])) {
    const std::int64_t rows = out.data.shape[0], cols = out.data.shape[1];
    codes_.resize(static_cast<std::size_t>(rows * cols));
    view_.data = matrix(static_cast<void*>(codes_.data()), out.data.dtype, rows, cols);
    const Granularity granularity = out.format.granularity;
    moves_scales_ = out.scales == ScaleSource::kComputed && scales_rows(granularity);
    if (!moves_scales_) return;
    scales_.resize(static_cast<std::size_t>(grid_.rows * grid_.cols));
    void* data = scales_.data();
    view_.scale = varies_along_k(granularity)
                      ? matrix(data, DType::kFloat32, grid_.rows, grid_.cols)
                      : vector(data, DType::kFloat32, rows);
  }

  const CastTarget& view() const { return view_; }

  void write(std::int64_t row) const {
    const std::int64_t cols = out_.data.shape[1];
    std::copy_n(codes_.data() + row * cols, cols,
                static_cast<std::uint8_t*>(out_.data.data) + row * out_.data.strides[0]);
    if (!moves_scales_) return;
    const core::ScaleAccess<float> from = core::scale_access(view_), to = core::scale_access(out_);
    for (std::int64_t col = 0; col < grid_.cols; ++col) to(row, col) = from(row, col);
  }

 private:
  const CastTarget& out_;
  CastTarget view_;
  core::ScaleGrid grid_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
  bool moves_scales_ = false;
};

// Rows that come from nowhere are not written.
void cast_gathered(const GatheredRows& source, const TensorView& values, CastTargets targets,
                   const config::CastFormat& format) {
  const CastTarget rows = *targets.rows;
  const RowsAside aside(rows);
  targets.rows = aside.view();
  cast_values(values, targets, format);
  std::int64_t end = values.shape[0];
  if (targets.offsets) {
    const TensorView& offsets = *targets.offsets;
    end = static_cast<const std::int32_t*>(offsets.data)[offsets.shape[0] - 1];
  }
  const auto* sources = static_cast<const std::int32_t*>(source.sources.data);
  for (std::int64_t row = 0; row < end; ++row) {
    if (sources[row] >= 0) aside.write(row);
  }
}

}  // namespace

void cast(const CastSource& source, const CastTargets& targets, const config::CastFormat& format) {
  const OwnedMatrix values =
      std::visit([&](const auto& each) { return values_of(each, format.in); }, source);
  const auto* gathered = std::get_if<GatheredRows>(&source);
  if (gathered != nullptr && targets.rows) {
    return cast_gathered(*gathered, values.view, targets, format);
  }
  cast_values(values.view, targets, format);
}

void values(const CastSource& source, const MutableTensorView& out) {
  const OwnedMatrix values =
      std::visit([&](const auto& each) { return values_of(each, out.dtype); }, source);
  convert_dtype(values.view, out, Overflow::kSaturate);
}

}  // namespace octofold::cpu
