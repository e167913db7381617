#include "ops/norm_checks.h"

namespace octofold::ops {

TensorView checked_numbers(const core::Arguments& check, std::string_view argument,
                           const TensorView& given) {
  const TensorView matrix = core::flatten(check, argument, given);
  check.require_input_matrix(argument, matrix);
  check.require_dtype(argument, matrix, kNumbers);
  return matrix;
}

void check_vector(const core::Arguments& check, std::string_view argument, const TensorView& vector,
                  std::initializer_list<DType> dtypes, std::int64_t size, Device device) {
  check.require_vector(argument, vector);
  check.require_dtype(argument, vector, dtypes);
  check.require_shape(argument, vector, {size});
  check.require_same_device(argument, vector, device);
}

void require_norm_kind(const core::Arguments& check, NormKind kind) {
  if (kind == NormKind::kRms || kind == NormKind::kLayer) return;
  check.fail("norm", "a NormKind", core::format("{}", static_cast<int>(kind)));
}

void require_mean(const core::Arguments& check, NormKind kind, bool given) {
  const bool needed = kind == NormKind::kLayer;
  if (given == needed) return;
  check.fail("mean", needed ? "one for a LayerNorm" : "none for an RMSNorm",
             needed ? "none" : "one");
}

namespace {

void check_batches(const core::Arguments& check, std::string_view argument,
                   const TensorView& matrix, const TensorView& x) {
  check.require_input_matrix(argument, matrix);
  check.require_dtype(argument, matrix, {x.dtype, DType::kFloat32});
  check.require_same_device(argument, matrix, x.device);
  const std::int64_t batches = matrix.shape[0], rows = x.shape[0];
  if (matrix.shape[1] != x.shape[1]) {
    check.fail(argument, core::format("{} columns", x.shape[1]),
               core::format("{}", matrix.shape[1]));
  }
  if (batches == 0 ? rows > 0 : rows % batches != 0) {
    check.fail(argument, core::format("a number of rows that divides the {} of x", rows),
               core::format("{}", batches));
  }
}

}  // namespace

std::int64_t check_norm_operands(const core::Arguments& check, const NormOperands& operands,
                                 const TensorView& x, Inputs& inputs) {
  const auto check_row = [&](std::string_view argument, const std::optional<TensorView>& vector) {
    if (!vector) return;
    check_vector(check, argument, *vector, {x.dtype, DType::kFloat32}, x.shape[1], x.device);
    inputs.add(argument, *vector);
  };
  check_row("weight", operands.weight);
  check_row("bias", operands.bias);
  const auto check_rows = [&](std::string_view argument, const std::optional<TensorView>& matrix) {
    if (!matrix) return;
    check_batches(check, argument, *matrix, x);
    inputs.add(argument, *matrix);
  };
  check_rows("ada_scale", operands.ada_scale);
  check_rows("ada_shift", operands.ada_shift);
  if (!operands.ada_scale) return operands.ada_shift ? operands.ada_shift->shape[0] : 1;
  const std::int64_t batches = operands.ada_scale->shape[0];
  if (operands.ada_shift && operands.ada_shift->shape[0] != batches) {
    check.fail("ada_shift", core::format("{} rows, as 'ada_scale'", batches),
               core::format("{}", operands.ada_shift->shape[0]));
  }
  return batches;
}

}  // namespace octofold::ops
