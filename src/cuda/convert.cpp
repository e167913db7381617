#include "cuda/convert.h"

#include "core/scale_layout.h"
#include "cuda/cast_views.h"
#include "kernels/cast/config/params.h"
#include "plan/cast.h"

namespace octofold::cuda {
namespace {

using plan::ConvertProblem;

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

void dequantize(Device& device, const ScaledTensorView& x, const MutableTensorView& out,
                Stream stream) {
  convert(device,
          {.scaled = true,
           .granularity = x.granularity,
           .has_channel_scale = x.channel_scale.has_value()},
          core::scale_access(x), floats_of(x.channel_scale), x.data, out, stream);
}

void convert_dtype(Device& device, const TensorView& x, const MutableTensorView& out,
                   Overflow overflow, Stream stream) {
  convert(device, {.saturate = overflow == Overflow::kSaturate}, {}, nullptr, x, out, stream);
}

}  // namespace octofold::cuda
