#include "cuda/norms.h"

#include <variant>

#include "octofold/norm.h"
#include "octofold/norm_gradient.h"

#include "core/check.h"
#include "cpu/backend.h"
#include "kernels/norm/config/norm.h"
#include "ops/backend.h"
#include "ops/cast_sources.h"

namespace octofold {

void norm(const Normed& given, const MutableTensorView& given_y, Stream stream) {
  const core::Arguments check("norm");
  const ops::CheckedSource checked = ops::checked_source(check, given);
  const auto& source = std::get<Normed>(checked.source);
  const MutableTensorView y = ops::checked_like(check, "y", given_y, given.x);
  check.require_matrix("y", y);
  ops::require_apart(check, "y", y, checked.inputs);
  const Device device = source.x.device;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::normalize(source, y);
  cuda::norm(ops::gpu("norm", device), source, y, stream);
}

namespace {

using ops::Inputs;

NormGradientArguments checked(const core::Arguments& check, const NormGradientArguments& given,
                              Inputs& inputs) {
  ops::require_norm_kind(check, given.kind);
  NormGradientArguments arguments = given;
  arguments.gradient = ops::checked_numbers(check, "gradient", given.gradient);
  inputs.add("gradient", arguments.gradient);
  const auto check_matrix = [&](std::string_view argument, const TensorView& view) {
    const TensorView matrix = ops::checked_like(check, argument, view, given.gradient);
    check.require_input_matrix(argument, matrix);
    inputs.add(argument, matrix);
    return matrix;
  };
  const auto check_statistic = [&](std::string_view argument, const TensorView& vector) {
    ops::check_vector(check, argument, vector, {DType::kFloat32}, arguments.gradient.shape[0],
                      arguments.gradient.device);
    inputs.add(argument, vector);
  };
  arguments.x = check_matrix("x", given.x);
  if (given.residual_gradient) {
    arguments.residual_gradient = check_matrix("residual_gradient", *given.residual_gradient);
  }
  check_statistic("rstd", given.rstd);
  ops::require_mean(check, given.kind, given.mean.has_value());
  if (given.mean) check_statistic("mean", *given.mean);
  return arguments;
}

NormGradients checked(const core::Arguments& check, const NormGradients& given,
                      const TensorView& given_gradient, const NormGradientArguments& arguments,
                      std::int64_t batches, Inputs& inputs) {
  const Device device = arguments.gradient.device;
  const std::int64_t cols = arguments.gradient.shape[1];
  NormGradients gradients = given;
  gradients.dx = ops::checked_like(check, "dx", given.dx, given_gradient);
  check.require_matrix("dx", gradients.dx);
  inputs.add_output("dx", gradients.dx);
  const auto check_row = [&](std::string_view argument,
                             const std::optional<MutableTensorView>& vector) {
    if (!vector) return;
    ops::check_vector(check, argument, *vector, {DType::kFloat32}, cols, device);
    inputs.add_output(argument, *vector);
  };
  const auto check_rows = [&](std::string_view argument, const MutableTensorView& matrix,
                              std::int64_t rows) {
    check.require_matrix(argument, matrix);
    check.require_dtype(argument, matrix, {DType::kFloat32});
    check.require_shape(argument, matrix, {rows, cols});
    check.require_same_device(argument, matrix, device);
    inputs.add_output(argument, matrix);
  };
  check_row("dweight", given.dweight);
  check_row("dbias", given.dbias);
  if (given.d_ada_scale) {
    ops::require_where(check, "d_ada_scale", given.d_ada_scale,
                       arguments.operands.ada_scale.has_value(), "without 'ada_scale'");
    check_rows("d_ada_scale", *given.d_ada_scale, batches);
  }
  if (given.d_ada_shift) {
    ops::require_where(check, "d_ada_shift", given.d_ada_shift,
                       arguments.operands.ada_shift.has_value(), "without 'ada_shift'");
    check_rows("d_ada_shift", *given.d_ada_shift, batches);
  }
  const bool sums = given.dweight || given.dbias || given.d_ada_scale || given.d_ada_shift;
  ops::require_where(check, "workspace", given.workspace, sums,
                     sums ? "where more than dx is wanted" : "where dx alone is wanted");
  if (sums) {
    check_rows("workspace", *given.workspace, norm_workspace_rows(cols, batches));
    if (cols > 0 && given.workspace->strides[0] != cols) {
      check.fail("workspace", "contiguous rows", core::describe(*given.workspace));
    }
  }
  return gradients;
}

}  // namespace

std::int64_t norm_workspace_rows(std::int64_t cols, std::int64_t batches) {
  const core::Arguments check("norm_workspace_rows");
  check.require_size("cols", cols);
  check.require_size("batches", batches);
  return 2 * config::norm_spans(cols, batches);
}

void norm_gradient(const NormGradientArguments& given, const NormGradients& given_gradients,
                   Stream stream) {
  const core::Arguments check("norm_gradient");
  Inputs inputs(check);
  const NormGradientArguments arguments = checked(check, given, inputs);
  const std::int64_t batches =
      ops::check_norm_operands(check, arguments.operands, arguments.gradient, inputs);
  const NormGradients gradients =
      checked(check, given_gradients, given.gradient, arguments, batches, inputs);
  const Device device = arguments.gradient.device;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::norm_gradient(arguments, gradients);
  cuda::norm_gradient(ops::gpu("norm_gradient", device), arguments, gradients, stream);
}

}  // namespace octofold
