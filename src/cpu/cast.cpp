#include "cpu/cast.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "core/scale_layout.h"
#include "cpu/activations.h"
#include "cpu/cast_values.h"
#include "cpu/dequantize.h"
#include "cpu/gathered.h"
#include "cpu/norms.h"

namespace octofold::cpu {
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

}  // namespace octofold::cpu
