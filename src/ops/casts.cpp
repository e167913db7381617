#include "octofold/casts.h"

#include <array>
#include <optional>
#include <span>

#include "core/check.h"
#include "core/flatten.h"
#include "core/scale_layout.h"
#include "cpu/casts.h"
#include "cpu/convert.h"
#include "cuda/casts.h"
#include "kernels/cast/config/cast.h"
#include "kernels/shared/group_layout.h"
#include "ops/backend.h"
#include "ops/cast_targets.h"

namespace octofold {
namespace {

// What convert() takes: all but integers.
constexpr std::initializer_list<DType> kComputable = {DType::kFloat32, DType::kFloat16,
                                                      DType::kBFloat16, DType::kE4M3, DType::kE5M2};

// An unscaled result as a matrix; `x` is flat, `shape` its own.
MutableTensorView checked_output(const core::Arguments& check, const MutableTensorView& out,
                                 std::span<const std::int64_t> shape, const TensorView& x) {
  check.require_shape("out", out, shape);
  const MutableTensorView target = core::flatten(check, "out", out);
  check.require_matrix("out", target);
  check.require_same_device("out", target, x.device);
  check.require_disjoint("out", target, "x", x);
  return target;
}

// Both flat, the scales those of one matrix.
void dequantize_matrix(const ScaledTensorView& x, const MutableTensorView& out, Stream stream) {
  if (ops::is_on_cpu(out.device)) return cpu::dequantize(x, out);
  cuda::dequantize(ops::gpu("dequantize", out.device), x, out, stream);
}

}  // namespace

std::int64_t column_workspace_rows(std::int64_t rows, bool sums, bool amax) {
  if (rows < 0) {
    core::fail(ErrorCode::kInvalidArgument,
               "column_workspace_rows: argument 'rows': expected at least 0, got {}", rows);
  }
  return (int{sums} + int{amax}) * core::ceil_divide(rows, config::kReducedRows);
}

std::int64_t group_columns(std::int64_t rows, std::int64_t groups) {
  if (rows < 0 || groups < 1) {
    core::fail(ErrorCode::kInvalidArgument,
               "group_columns: expected rows of at least 0 in at least 1 group, got {} in {}", rows,
               groups);
  }
  return kScaleBlock * config::group_slots(rows, groups);
}

void quantize(const TensorView& x, const CastTargets& out, const QuantizeOptions& options,
              Stream stream) {
  const core::Arguments check("quantize");
  const TensorView source = core::flatten(check, "x", x);
  check.require_input_matrix("x", source);
  check.require_dtype("x", source, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  const std::array inputs{ops::CastInput{"x", source}};
  const CastTargets targets =
      ops::checked_targets(check, out, ops::shape_of(x), inputs, options.scales, true);
  const config::CastFormat format = ops::format_of(check, options, x.dtype, targets);
  if (ops::is_on_cpu(x.device)) return cpu::quantize(source, targets, format, options.scales);
  cuda::quantize(ops::gpu("quantize", x.device), {.x = source}, targets, format, options.scales,
                 stream);
}

void dequantize(const ScaledTensorView& x, const MutableTensorView& out, Stream stream) {
  const core::Arguments check("dequantize");
  ScaledTensorView source = core::flatten(check, "x", x);
  const std::optional<std::int64_t> stack = core::matrices_of(source);
  if (stack) source = core::flatten_stack(check, "x", x, *stack);
  const std::int64_t matrices = stack.value_or(1);
  const bool is_empty = source.data.shape[0] == 0;  // of an empty stack the scales say no shape
  if (!is_empty) check.require_scaled_input("x", source, matrices);
  const MutableTensorView target = checked_output(check, out, ops::shape_of(x.data), source.data);
  check.require_dtype("out", target, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check.require_disjoint("out", target, "x.scale", source.scale);
  if (is_empty) return;
  const std::int64_t rows = source.data.shape[0] / matrices;
  if (source.granularity == Granularity::kBlock128x128 && rows % kScaleBlock == 0) {
    return dequantize_matrix(source, target, stream);  // squares begin with each matrix anyway
  }
  MutableTensorView part = target;
  part.shape[0] = rows;
  for (std::int64_t i = 0; i < matrices; ++i) {
    part.data =
        static_cast<char*>(target.data) + i * rows * target.strides[0] * size_of(part.dtype);
    dequantize_matrix(core::matrix_of_stack(source, matrices, i), part, stream);
  }
}

void convert(const TensorView& x, const MutableTensorView& out, Overflow overflow, Stream stream) {
  const core::Arguments check("convert");
  check.require_enumerator("overflow", overflow);
  const TensorView source = core::flatten(check, "x", x);
  check.require_input_matrix("x", source);
  check.require_dtype("x", source, kComputable);
  const MutableTensorView target = checked_output(check, out, ops::shape_of(x), source);
  check.require_dtype("out", target, kComputable);
  if (ops::is_on_cpu(x.device)) return cpu::convert(source, target, overflow);
  cuda::convert(ops::gpu("convert", x.device), source, target, overflow, stream);
}

}  // namespace octofold
