#include "cpu/gathered.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/scale_layout.h"
#include "cpu/activations.h"
#include "cpu/casts.h"
#include "cpu/convert.h"
#include "cpu/parallel.h"

namespace octofold::cpu {
namespace {

const std::int32_t* sources_of(const GatheredRows& rows) {
  return static_cast<const std::int32_t*>(rows.sources.data);
}

// The rows, and zeros for those that come from nowhere.
OwnedMatrix gathered(const GatheredRows& rows) {
  const TensorView& x = rows.x;
  const std::int64_t count = rows.sources.shape[0], cols = x.shape[1], size = size_of(x.dtype);
  OwnedMatrix result;
  result.memory.resize(static_cast<std::size_t>(count * cols * size));
  std::byte* data = result.memory.data();
  result.view = matrix(static_cast<const void*>(data), x.dtype, count, cols);
  parallel_for(count, cols, [&] {
    return [&,
            values = std::vector<float>(static_cast<std::size_t>(cols))](std::int64_t row) mutable {
      const std::int32_t source = sources_of(rows)[row];
      if (source < 0 || cols == 0) return;
      const std::int64_t from = source / rows.slots * x.strides[0];
      if (!rows.factors) {
        std::memcpy(data + row * cols * size, static_cast<const std::byte*>(x.data) + from * size,
                    static_cast<std::size_t>(cols * size));
        return;
      }
      const float factor = static_cast<const float*>(rows.factors->data)[source];
      load(x.data, x.dtype, from, 1, cols, values.data());
      for (float& value : values) value *= factor;
      store(values.data(), cols, data, x.dtype, row * cols, Overflow::kNan);
    };
  });
  return result;
}

// A target of rows in memory of its own, of which some rows are then written to the one it is for.
class RowsAside {
 public:
  RowsAside(const MutableScaledTensorView& out, ScaleSource scales)
      : out_(out),
        view_(out),
        grid_(core::scale_grid(out.granularity, out.data.shape[0], out.data.shape[1])) {
    const std::int64_t rows = out.data.shape[0], cols = out.data.shape[1];
    codes_.resize(static_cast<std::size_t>(rows * cols));
    view_.data = matrix(static_cast<void*>(codes_.data()), out.data.dtype, rows, cols);
    moves_scales_ =
        scales == ScaleSource::kComputed &&
        (out.granularity == Granularity::kChannel || out.granularity == Granularity::kBlock1x128);
    if (!moves_scales_) return;
    scales_.resize(static_cast<std::size_t>(grid_.rows * grid_.cols));
    void* data = scales_.data();
    view_.scale = out.granularity == Granularity::kChannel
                      ? vector(data, DType::kFloat32, rows)
                      : matrix(data, DType::kFloat32, grid_.rows, grid_.cols);
  }

  const MutableScaledTensorView& view() const { return view_; }

  void write(std::int64_t row) const {
    const std::int64_t cols = out_.data.shape[1];
    std::copy_n(codes_.data() + row * cols, cols,
                static_cast<std::uint8_t*>(out_.data.data) + row * out_.data.strides[0]);
    if (!moves_scales_) return;
    const core::ScaleAccess<float> from = core::scale_access(view_), to = core::scale_access(out_);
    for (std::int64_t col = 0; col < grid_.cols; ++col) to(row, col) = from(row, col);
  }

 private:
  const MutableScaledTensorView& out_;
  MutableScaledTensorView view_;
  core::ScaleGrid grid_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
  bool moves_scales_ = false;
};

}  // namespace

void quantize_gathered(const GatheredRows& rows, const CastTargets& out,
                       const config::CastFormat& format, ScaleSource scales) {
  const OwnedMatrix x = gathered(rows);
  if (!out.rows) return quantize(x.view, out, format, scales);
  const RowsAside aside(*out.rows, scales);
  CastTargets targets = out;
  targets.rows = aside.view();
  quantize(x.view, targets, format, scales);
  std::int64_t end = rows.sources.shape[0];
  if (out.offsets) {
    end = static_cast<const std::int32_t*>(out.offsets->data)[out.offsets->shape[0] - 1];
  }
  for (std::int64_t row = 0; row < end; ++row) {
    if (sources_of(rows)[row] >= 0) aside.write(row);
  }
}

}  // namespace octofold::cpu
