#include "octofold/dequantize.h"

#include <optional>

#include "core/check.h"
#include "core/flatten.h"
#include "core/scale_layout.h"
#include "cpu/dequantize.h"
#include "cuda/backend.h"
#include "ops/backend.h"
#include "ops/inputs.h"
#include "ops/unscaled_output.h"

namespace octofold {
namespace {

// Both flat, the scales those of one matrix.
void dequantize_matrix(const ScaledTensorView& x, const MutableTensorView& out, Stream stream) {
  if (ops::is_on_cpu(out.device)) return cpu::dequantize(x, out);
  cuda::dequantize(ops::gpu("dequantize", out.device), x, out, stream);
}

}  // namespace

void dequantize(const ScaledTensorView& x, const MutableTensorView& out, Stream stream) {
  const core::Arguments check("dequantize");
  ScaledTensorView source = core::flatten(check, "x", x);
  const std::optional<std::int64_t> stack = core::matrices_of(source);
  if (stack) source = core::flatten_stack(check, "x", x, *stack);
  const std::int64_t matrices = stack.value_or(1);
  const bool is_empty = source.data.shape[0] == 0;  // of an empty stack the scales say no shape
  if (!is_empty) check.require_scaled_input("x", source, matrices);
  const MutableTensorView target =
      ops::checked_output(check, out, ops::shape_of(x.data), source.data);
  check.require_dtype("out", target, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check.require_disjoint("out", target, "x.scale", source.scale);
  if (source.channel_scale) {
    check.require_disjoint("out", target, "x.channel_scale", *source.channel_scale);
  }
  if (is_empty || !ops::has_memory(out.device)) return;
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

}  // namespace octofold
