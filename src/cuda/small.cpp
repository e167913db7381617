// Operations of a kernel or two: the dot product, rotary embeddings, and FP8 codes that become
// numbers, or lie another way.
#include "plan/small.h"

#include <cstdint>

#include "core/scale_layout.h"
#include "cuda/backend.h"
#include "cuda/params.h"
#include "cuda/views.h"
#include "plan/cast.h"

namespace octofold::cuda {
namespace {

bool has_blocks(const DotOperand& operand) {
  return operand.scale && varies_along_k(operand.granularity);
}

core::ScaleAccess<const float> scale_of(const DotOperand& operand) {
  if (!operand.scale) return {};
  return core::scale_access({operand.data, *operand.scale, operand.granularity});
}

// True if each run of the last dimension begins at a multiple of 16 bytes.
bool has_aligned_runs(const TensorView& tensor) {
  constexpr std::int64_t kBytes = 16;
  for (std::int32_t i = 0; i + 1 < tensor.rank; ++i) {
    if (tensor.shape[i] > 1 && tensor.strides[i] * size_of(tensor.dtype) % kBytes != 0)
      return false;
  }
  return reinterpret_cast<std::uintptr_t>(tensor.data) % kBytes == 0;
}

config::RotaryTable table_of(const TensorView& table) {
  return {.data = table.data,
          .batch_stride = table.shape[0] == 1 ? 0 : table.strides[0],
          .token_stride = table.strides[1]};
}

// `scale` is read where the problem is scaled.
void convert(Device& device, plan::ConvertProblem problem, core::ScaleAccess<const float> scale,
             const TensorView& x, const MutableTensorView& out, Stream stream) {
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
                                     .scale_col_stride = scale.col_stride};
  device.prepared(problem, [&] { return plan::plan_convert(problem, device.gpu()); })
      .launch(stream, &params);
}

}  // namespace

config::DotParams params_of(const DotArguments& arguments) {
  const DotOperand &a = arguments.a, &b = arguments.b;
  const std::int64_t size = a.data.shape[1];
  const core::ScaleAccess<const float> a_scale = scale_of(a), b_scale = scale_of(b);
  return {.a = a.data.data,
          .b = b.data.data,
          .a_scale = a_scale.data,
          .b_scale = b_scale.data,
          .a_scale_stride = a_scale.col_stride,
          .b_scale_stride = b_scale.col_stride,
          .a_blocks = has_blocks(a),
          .b_blocks = has_blocks(b),
          .size = size,
          .span = config::dot_span(size),
          .parts = static_cast<int>(config::dot_parts(size)),
          .part_sums = static_cast<float*>(arguments.workspace.data),
          .out = static_cast<float*>(arguments.out.data)};
}

void dot(Device& device, const DotArguments& arguments, Stream stream) {
  const DotOperand &a = arguments.a, &b = arguments.b;
  plan::DotProblem problem{.size = a.data.shape[1],
                           .a = a.data.dtype,
                           .b = b.data.dtype,
                           .a_blocks = has_blocks(a),
                           .b_blocks = has_blocks(b)};
  const int vector = config::DotConfig{.a = problem.a, .b = problem.b}.vector();
  problem.is_aligned = is_aligned(a.data, std::int64_t{vector} * size_of(problem.a)) &&
                       is_aligned(b.data, std::int64_t{vector} * size_of(problem.b));
  const config::DotParams params = params_of(arguments);
  device.prepared(problem, [&] { return plan::plan_dot(problem, device.gpu()); })
      .launch(stream, &params);
}

config::RotaryParams params_of(const RotaryArguments& arguments, const MutableTensorView& y) {
  const TensorView& x = arguments.x;
  // Truncated only where the planner refuses the problem.
  return {.x = x.data,
          .x_batch_stride = x.strides[0],
          .x_token_stride = x.strides[1],
          .x_head_stride = x.strides[2],
          .cos = table_of(arguments.cos),
          .sin = table_of(arguments.sin),
          .y = y.data,
          .all_tokens = static_cast<unsigned>(x.shape[0] * x.shape[1]),
          .tokens = static_cast<unsigned>(x.shape[1]),
          .heads = static_cast<int>(x.shape[2]),
          .half = static_cast<int>(x.shape[3] / 2),
          .inverse = arguments.inverse};
}

void rotary(Device& device, const RotaryArguments& arguments, const MutableTensorView& y,
            Stream stream) {
  const TensorView& x = arguments.x;
  const plan::RotaryProblem problem{
      .tokens = x.shape[0] * x.shape[1],
      .heads = x.shape[2],
      .head_size = x.shape[3],
      .type = x.dtype,
      .is_aligned = has_aligned_runs(x) && has_aligned_runs(arguments.cos) &&
                    has_aligned_runs(arguments.sin) && has_aligned_runs(y)};
  const config::RotaryParams params = params_of(arguments, y);
  device.prepared(problem, [&] { return plan::plan_rotary(problem, device.gpu()); })
      .launch(stream, &params);
}

void dequantize(Device& device, const ScaledTensorView& x, const MutableTensorView& out,
                Stream stream) {
  convert(device, {.scaled = true, .granularity = x.granularity}, core::scale_access(x), x.data,
          out, stream);
}

void convert_dtype(Device& device, const TensorView& x, const MutableTensorView& out,
                   Overflow overflow, Stream stream) {
  convert(device, {.saturate = overflow == Overflow::kSaturate}, {}, x, out, stream);
}

config::TransposeParams params_of(const TensorView& x, const MutableTensorView& out,
                                  std::int64_t matrices) {
  const std::int64_t rows = matrices == 0 ? 0 : x.shape[0] / matrices, cols = x.shape[1];
  // An empty matrix has no tiles to be counted.
  const bool is_empty = rows == 0 || cols == 0;
  return {.x = static_cast<const unsigned char*>(x.data),
          .x_stride = x.strides[0],
          .out = static_cast<unsigned char*>(out.data),
          .out_stride = out.strides[0],
          .rows = rows,
          .cols = cols,
          .tiles = is_empty ? config::TransposeTiles{} : config::TransposeTiles::of(rows, cols)};
}

void transpose(Device& device, const TensorView& x, const MutableTensorView& out,
               std::int64_t matrices, Stream stream) {
  constexpr int kBytes = config::TransposeConfig::kVector;
  const config::TransposeParams params = params_of(x, out, matrices);
  const plan::TransposeProblem problem{.matrices = matrices,
                                       .rows = params.rows,
                                       .cols = params.cols,
                                       .x_is_aligned = is_aligned(x, kBytes),
                                       .out_is_aligned = is_aligned(out, kBytes)};
  device.prepared(problem, [&] { return plan::plan_transpose(problem, device.gpu()); })
      .launch(stream, &params);
}

}  // namespace octofold::cuda
