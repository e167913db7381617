#include "cuda/norms.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/cast_views.h"
#include "cuda/casts.h"
#include "kernels/norm/config/params.h"
#include "plan/norm.h"

namespace octofold::cuda {
namespace {

using config::NormOperand;

NormOperand kind_of(const std::optional<TensorView>& operand, DType in) {
  if (!operand) return NormOperand::kNone;
  return operand->dtype == in ? NormOperand::kInputType : NormOperand::kFloat32;
}

config::NormForm form_of(NormKind kind, const NormOperands& operands, DType in) {
  return {.kind = kind,
          .weight = kind_of(operands.weight, in),
          .bias = kind_of(operands.bias, in),
          .scale = kind_of(operands.scale, in),
          .shift = kind_of(operands.shift, in)};
}

template <typename View>
auto data_of(const std::optional<View>& tensor) {
  return tensor ? tensor->data : nullptr;
}

template <typename View>
std::int64_t stride_of(const std::optional<View>& matrix) {
  return matrix ? matrix->strides[0] : 0;
}

template <typename View>
float* floats_of(const std::optional<View>& tensor) {
  return tensor ? static_cast<float*>(tensor->data) : nullptr;
}

// 1 where no operand tells batches apart.
std::int64_t batches_of(const NormOperands& operands) {
  if (operands.scale) return operands.scale->shape[0];
  return operands.shift ? operands.shift->shape[0] : 1;
}

config::NormOperands operands_of(const NormOperands& operands, std::int64_t rows) {
  return {.weight = data_of(operands.weight),
          .bias = data_of(operands.bias),
          .scale = data_of(operands.scale),
          .scale_stride = stride_of(operands.scale),
          .shift = data_of(operands.shift),
          .shift_stride = stride_of(operands.shift),
          .rows_per_batch = rows / std::max<std::int64_t>(batches_of(operands), 1)};
}

bool operands_are_aligned(const NormOperands& operands) {
  return is_aligned(operands.weight, 16) && is_aligned(operands.bias, 16) &&
         is_aligned(operands.scale, 16) && is_aligned(operands.shift, 16);
}

}  // namespace

void quantize_norm(Device& device, const NormArguments& arguments, const CastTargets& out,
                   const config::CastFormat& format, ScaleSource scales, Stream stream) {
  const TensorView& x = arguments.x;
  const std::int64_t rows = x.shape[0];
  // Columns are reduced by tiles.
  const bool reduces = out.columns.sums || out.columns.amax;
  const bool casts =
      !reduces && plan::row_kernel_casts(format.granularity, out.rows.has_value(),
                                         out.transposed.has_value(), scales == ScaleSource::kGiven);
  const config::NormForm form = form_of(arguments.kind, arguments.operands, x.dtype);
  const bool aligned_operands = operands_are_aligned(arguments.operands);
  plan::NormProblem problem{.rows = rows,
                            .cols = x.shape[1],
                            .form = form,
                            .adds_residual = arguments.residual.has_value(),
                            .casts = casts,
                            .format = format};
  problem.inputs_are_aligned = is_aligned(x, 16) && is_aligned(arguments.residual, 16) &&
                               is_aligned(arguments.sum, 16) && (aligned_operands || !casts);
  problem.codes_are_aligned = !casts || codes_are_aligned(out.rows);
  config::NormParams params{.x = x.data,
                            .x_stride = x.strides[0],
                            .residual = data_of(arguments.residual),
                            .residual_stride = stride_of(arguments.residual),
                            .sum = data_of(arguments.sum),
                            .sum_stride = stride_of(arguments.sum),
                            .rows = rows,
                            .cols = x.shape[1],
                            .epsilon = arguments.epsilon,
                            .rstd = static_cast<float*>(arguments.rstd.data),
                            .mean = floats_of(arguments.mean),
                            .operands = operands_of(arguments.operands, rows),
                            .target = {}};
  if (casts) params.target = target_of(out.rows);
  device.prepared(problem, [&] { return plan::plan_norm(problem, device.gpu()); })
      .launch(stream, &params);
  if (casts) return;
  quantize(device,
           {.source = {.kind = config::SourceKind::kNormed, .norm = form},
            .x = arguments.sum ? TensorView(*arguments.sum) : x,
            .rstd = params.rstd,
            .mean = params.mean,
            .norm = params.operands,
            .norm_is_aligned = aligned_operands},
           out, format, scales, stream);
}

void norm_backward(Device& device, const NormBackwardArguments& arguments,
                   const NormGradients& gradients, Stream stream) {
  const TensorView &dy = arguments.dy, &x = arguments.x;
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
      .of_scale = gradients.dscale.has_value(),
      .of_shift = gradients.dshift.has_value(),
      .is_aligned = is_aligned(dy, 16) && is_aligned(x, 16) && is_aligned(gradients.dx, 16) &&
                    is_aligned(arguments.residual_gradient, 16)};
  const auto prepared =
      device.prepared(problem, [&] { return plan::plan_norm_backward(problem, device.gpu()); });
  float* workspace = floats_of(gradients.workspace);
  const std::int64_t sums = config::norm_spans(cols, problem.batches) * cols;
  const config::NormBackwardParams params{
      .dy = dy.data,
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
      .mean = static_cast<const float*>(data_of(arguments.mean)),
      .operands = operands_of(arguments.operands, rows),
      .batches = problem.batches,
      .rows_per_block = prepared.config.rows_per_block,
      .blocks_per_batch = prepared.config.blocks_per_batch,
      .products = workspace,
      .offsets = workspace != nullptr ? workspace + sums : nullptr,
      .dweight = floats_of(gradients.dweight),
      .dbias = floats_of(gradients.dbias),
      .dscale = floats_of(gradients.dscale),
      .dscale_stride = stride_of(gradients.dscale),
      .dshift = floats_of(gradients.dshift),
      .dshift_stride = stride_of(gradients.dshift)};
  prepared.launch(stream, &params);
}

}  // namespace octofold::cuda
