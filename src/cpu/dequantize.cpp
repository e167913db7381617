#include "cpu/dequantize.h"

#include <algorithm>

#include "core/scale_layout.h"
#include "cpu/convert.h"
#include "cpu/parallel.h"
#include "cpu/runs.h"
#include "kernels/shared/fp8_format.h"

namespace octofold::cpu {

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
