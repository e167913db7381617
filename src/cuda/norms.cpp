#include <cstdint>
#include <optional>

#include "cuda/backend.h"
#include "cuda/params.h"
#include "cuda/views.h"
#include "plan/norm.h"

namespace octofold::cuda {
namespace {

// True if the kernel of rows casts too. Columns are reduced by tiles.
bool casts_too(const CastTargets& targets) {
  if (targets.columns.sums || targets.columns.amax || !targets.rows) return false;
  return plan::row_kernel_casts(targets.rows->format.granularity, true,
                                targets.transposed.has_value(),
                                targets.rows->scales == ScaleSource::kGiven || targets.rows->amax);
}

// Statistics and sum, and with a y that, or codes.
void launch(Device& device, const Normed& source, const MutableTensorView* y,
            const std::optional<CastTarget>& codes, const config::CastFormat& format,
            Stream stream) {
  using config::NormOutput;
  const TensorView& x = source.x;
  const std::int64_t rows = x.shape[0];
  const bool is_whole = y != nullptr || codes;
  plan::NormProblem problem{.rows = rows,
                            .cols = x.shape[1],
                            .form = form_of(source.kind, source.operands, x.dtype),
                            .adds_residual = source.residual.has_value(),
                            .output = y != nullptr
                                          ? NormOutput::kNumbers
                                          : (codes ? NormOutput::kCodes : NormOutput::kNothing),
                            .format = format};
  problem.inputs_are_aligned = is_aligned(x, 16) && is_aligned(source.residual, 16) &&
                               is_aligned(source.sum, 16) && (y == nullptr || is_aligned(*y, 16)) &&
                               (!is_whole || operands_are_aligned(source.operands));
  problem.codes_are_aligned = !codes || codes_are_aligned(codes);
  const config::NormParams params = params_of(source, y, codes);
  device.prepared(problem, [&] { return plan::plan_norm(problem, device.gpu()); })
      .launch(stream, &params);
}

}  // namespace

config::NormParams params_of(const Normed& source, const MutableTensorView* y,
                             const std::optional<CastTarget>& codes) {
  const TensorView& x = source.x;
  return {.x = x.data,
          .x_stride = x.strides[0],
          .residual = data_of(source.residual),
          .residual_stride = stride_of(source.residual),
          .sum = data_of(source.sum),
          .sum_stride = stride_of(source.sum),
          .rows = x.shape[0],
          .cols = x.shape[1],
          .epsilon = source.epsilon,
          .rstd = static_cast<float*>(source.rstd.data),
          .mean = floats_of(source.mean),
          .operands = operands_of(source.operands, x.shape[0]),
          .target = target_of(codes),
          .y = y != nullptr ? y->data : nullptr,
          .y_stride = y != nullptr ? y->strides[0] : 0};
}

bool normalize(Device& device, const Normed& source, const CastTargets& targets,
               const config::CastFormat& format, Stream stream) {
  const bool casts = casts_too(targets);
  launch(device, source, nullptr, casts ? targets.rows : std::nullopt, format, stream);
  return casts;
}

void norm(Device& device, const Normed& source, const MutableTensorView& y, Stream stream) {
  launch(device, source, &y, std::nullopt, {.in = y.dtype}, stream);
}

config::NormBackwardParams params_of(const NormGradientArguments& arguments,
                                     const NormGradients& gradients, const plan::NormSpans& spans) {
  const TensorView &dy = arguments.gradient, &x = arguments.x;
  const std::int64_t rows = dy.shape[0], cols = dy.shape[1];
  const std::int64_t batches = batches_of(arguments.operands);
  float* workspace = floats_of(gradients.workspace);
  const std::int64_t sums = config::norm_spans(cols, batches) * cols;
  return {.dy = dy.data,
          .dy_stride = dy.strides[0],
          .x = x.data,
          .x_stride = x.strides[0],
          .addend = data_of(arguments.residual_gradient),
          .addend_stride = stride_of(arguments.residual_gradient),
          .dx = gradients.dx.data,
          .dx_stride = gradients.dx.strides[0],
          .rows = rows,
          .cols = cols,
          .rstd = static_cast<const float*>(arguments.rstd.data),
          .mean = floats_of(arguments.mean),
          .operands = operands_of(arguments.operands, rows),
          .batches = batches,
          .rows_per_block = spans.rows_per_block,
          .blocks_per_batch = spans.blocks_per_batch,
          .products = workspace,
          .offsets = workspace != nullptr ? workspace + sums : nullptr,
          .dweight = floats_of(gradients.dweight),
          .dbias = floats_of(gradients.dbias),
          .dscale = floats_of(gradients.d_ada_scale),
          .dscale_stride = stride_of(gradients.d_ada_scale),
          .dshift = floats_of(gradients.d_ada_shift),
          .dshift_stride = stride_of(gradients.d_ada_shift)};
}

void norm_gradient(Device& device, const NormGradientArguments& arguments,
                   const NormGradients& gradients, Stream stream) {
  const TensorView &dy = arguments.gradient, &x = arguments.x;
  const std::int64_t rows = dy.shape[0], cols = dy.shape[1];
  const plan::NormBackwardProblem problem{
      .rows = rows,
      .cols = cols,
      .batches = batches_of(arguments.operands),
      .form = form_of(arguments.kind, arguments.operands, dy.dtype),
      .in = dy.dtype,
      .adds_gradient = arguments.residual_gradient.has_value(),
      .of_weight = gradients.dweight.has_value(),
      .of_bias = gradients.dbias.has_value(),
      .of_scale = gradients.d_ada_scale.has_value(),
      .of_shift = gradients.d_ada_shift.has_value(),
      .is_aligned = is_aligned(dy, 16) && is_aligned(x, 16) && is_aligned(gradients.dx, 16) &&
                    is_aligned(arguments.residual_gradient, 16) &&
                    is_aligned(gradients.workspace, 16)};
  const auto prepared =
      device.prepared(problem, [&] { return plan::plan_norm_backward(problem, device.gpu()); });
  const config::NormBackwardParams params = params_of(arguments, gradients, prepared.config);
  prepared.launch(stream, &params);
}

}  // namespace octofold::cuda
