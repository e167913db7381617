#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>

#include "octofold/convert_dtype.h"
#include "octofold/dequantize.h"
#include "octofold/tensor.h"
#include "octofold/transpose.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/scale_layout.h"
#include "cpu/backend.h"
#include "cpu/matrices.h"
#include "cuda/backend.h"
#include "ops/backend.h"
#include "ops/inputs.h"

namespace octofold {
namespace {

// Returns a checked out as a matrix; `x` is flat, `shape` its own.
MutableTensorView checked_output(const core::Arguments& check, const MutableTensorView& out,
                                 std::span<const std::int64_t> shape, const TensorView& x) {
  check.require_shape("out", out, shape);
  const MutableTensorView target = core::flatten(check, "out", out);
  check.require_matrix("out", target);
  check.require_same_device("out", target, x.device);
  check.require_disjoint("out", target, "x", x);
  return target;
}

// The dtypes that convert_dtype() takes: all but integers.
constexpr std::initializer_list<DType> kComputable = {DType::kFloat32, DType::kFloat16,
                                                      DType::kBFloat16, DType::kE4M3, DType::kE5M2};

}  // namespace

void convert_dtype(const TensorView& x, const MutableTensorView& out, Overflow overflow,
                   Stream stream) {
  const core::Arguments check("convert_dtype");
  check.require_enumerator("overflow", overflow);
  const TensorView source = core::flatten(check, "x", x);
  check.require_input_matrix("x", source);
  check.require_dtype("x", source, kComputable);
  const MutableTensorView target = checked_output(check, out, ops::shape_of(x), source);
  check.require_dtype("out", target, kComputable);
  if (!ops::has_memory(x.device)) return;
  if (ops::is_on_cpu(x.device)) return cpu::convert_dtype(source, target, overflow);
  cuda::convert_dtype(ops::gpu("convert_dtype", x.device), source, target, overflow, stream);
}

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
  const MutableTensorView target = checked_output(check, out, ops::shape_of(x.data), source.data);
  check.require_dtype("out", target, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check.require_disjoint("out", target, "x.scale", source.scale);
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

void transpose(const TensorView& x, const MutableTensorView& out, Stream stream) {
  const core::Arguments check("transpose");
  const TensorView source = core::flatten(check, "x", x);
  if (x.rank < 2) check.fail("x", "at least 2 dimensions", core::describe(x));
  check.require_input_matrix("x", source);
  check.require_dtype("x", source, {DType::kE4M3, DType::kE5M2});
  std::array<std::int64_t, kMaxRank> shape = x.shape;
  std::swap(shape[x.rank - 2], shape[x.rank - 1]);
  const MutableTensorView target =
      checked_output(check, out, std::span(shape.data(), static_cast<std::size_t>(x.rank)), source);
  check.require_dtype("out", target, {source.dtype});
  if (!ops::has_memory(x.device)) return;
  std::int64_t matrices = 1;
  for (std::int32_t i = 0; i < x.rank - 2; ++i) matrices *= x.shape[i];
  if (ops::is_on_cpu(x.device)) return cpu::transpose(source, target, matrices);
  cuda::transpose(ops::gpu("transpose", x.device), source, target, matrices, stream);
}

}  // namespace octofold
