#include "octofold/norms.h"

#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/flatten.h"
#include "cpu/norms.h"
#include "cuda/norms.h"
#include "kernels/norm/config/norm.h"
#include "ops/backend.h"
#include "ops/cast_targets.h"
#include "ops/inputs.h"

namespace octofold {
namespace {

using ops::Inputs;

constexpr std::initializer_list<DType> kWide = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

bool is_same_memory(const TensorView& left, const TensorView& right) {
  return left.data == right.data && left.strides[0] == right.strides[0];
}

// A matrix that is read, and gives rows, columns, dtype and device to the others.
TensorView checked_first(const core::Arguments& check, std::string_view argument,
                         const TensorView& given) {
  const TensorView matrix = core::flatten(check, argument, given);
  check.require_input_matrix(argument, matrix);
  check.require_dtype(argument, matrix, kWide);
  return matrix;
}

// A matrix like it.
template <typename View>
View checked_like(const core::Arguments& check, std::string_view argument, const View& given,
                  const TensorView& first) {
  check.require_shape(argument, given, ops::shape_of(first));
  check.require_dtype(argument, given, {first.dtype});
  check.require_same_device(argument, given, first.device);
  return core::flatten(check, argument, given);
}

void check_vector(const core::Arguments& check, std::string_view argument, const TensorView& vector,
                  std::initializer_list<DType> dtypes, std::int64_t size, Device device) {
  check.require_vector(argument, vector);
  check.require_dtype(argument, vector, dtypes);
  check.require_shape(argument, vector, {size});
  check.require_same_device(argument, vector, device);
}

void check_batches(const core::Arguments& check, std::string_view argument, const TensorView& scale,
                   const TensorView& x) {
  check.require_input_matrix(argument, scale);
  check.require_dtype(argument, scale, {x.dtype, DType::kFloat32});
  check.require_same_device(argument, scale, x.device);
  const std::int64_t batches = scale.shape[0], rows = x.shape[0];
  if (scale.shape[1] != x.shape[1]) {
    check.fail(argument, core::format("{} columns", x.shape[1]),
               core::format("{}", scale.shape[1]));
  }
  if (batches == 0 ? rows > 0 : rows % batches != 0) {
    check.fail(argument, core::format("as many rows as divide the {} of x", rows),
               core::format("{}", batches));
  }
}

// The number of batches; 1 without scale and shift.
std::int64_t check_operands(const core::Arguments& check, const NormOperands& operands,
                            const TensorView& x, Inputs& inputs) {
  const auto check_row = [&](std::string_view argument, const std::optional<TensorView>& vector) {
    if (!vector) return;
    check_vector(check, argument, *vector, {x.dtype, DType::kFloat32}, x.shape[1], x.device);
    inputs.add(argument, *vector);
  };
  check_row("weight", operands.weight);
  check_row("bias", operands.bias);
  if (operands.scale) {
    check_batches(check, "scale", *operands.scale, x);
    inputs.add("scale", *operands.scale);
  }
  if (operands.shift) {
    check_batches(check, "shift", *operands.shift, x);
    inputs.add("shift", *operands.shift);
  }
  if (!operands.scale) return operands.shift ? operands.shift->shape[0] : 1;
  const std::int64_t batches = operands.scale->shape[0];
  if (operands.shift && operands.shift->shape[0] != batches) {
    check.fail("shift", core::format("{} rows, as 'scale'", batches),
               core::format("{}", operands.shift->shape[0]));
  }
  return batches;
}

void require_kind(const core::Arguments& check, NormKind kind) {
  if (kind == NormKind::kRms || kind == NormKind::kLayer) return;
  check.fail("norm", "a NormKind", core::format("{}", static_cast<int>(kind)));
}

// Whether `argument` is there exactly where it has to be.
template <typename T>
void require_where(const core::Arguments& check, std::string_view argument,
                   const std::optional<T>& given, bool needed, std::string_view reason) {
  if (given.has_value() == needed) return;
  check.fail(argument, core::format("{} {}", needed ? "one" : "none", reason),
             needed ? "none" : "one");
}

void require_mean(const core::Arguments& check, NormKind kind, bool given) {
  const bool needed = kind == NormKind::kLayer;
  if (given == needed) return;
  check.fail("mean", needed ? "one for a LayerNorm" : "none for an RMSNorm",
             needed ? "none" : "one");
}

// Checked, and matrices all. `inputs`: also what is written besides the targets.
NormArguments checked(const core::Arguments& check, const NormArguments& given, Inputs& inputs) {
  require_kind(check, given.kind);
  if (!(given.epsilon >= 0 && std::isfinite(given.epsilon))) {
    check.fail("epsilon", "a finite number of at least 0", core::format("{}", given.epsilon));
  }
  NormArguments arguments = given;
  arguments.x = checked_first(check, "x", given.x);
  inputs.add("x", arguments.x);
  check_operands(check, given.operands, arguments.x, inputs);
  require_where(check, "sum", given.sum, given.residual.has_value(),
                given.residual ? "where there is a residual" : "without a residual");
  if (given.residual) {
    arguments.residual = checked_like(check, "residual", *given.residual, given.x);
    check.require_input_matrix("residual", *arguments.residual);
    arguments.sum = checked_like(check, "sum", *given.sum, given.x);
    check.require_matrix("sum", *arguments.sum);
    inputs.add_output("sum", *arguments.sum);
    if (!is_same_memory(*arguments.sum, *arguments.residual)) {
      check.require_disjoint("sum", *arguments.sum, "residual", *arguments.residual);
    }
    inputs.add("residual", *arguments.residual);
  }
  const auto check_statistic = [&](std::string_view argument, const TensorView& vector) {
    check_vector(check, argument, vector, {DType::kFloat32}, arguments.x.shape[0],
                 arguments.x.device);
    inputs.add_output(argument, vector);
  };
  check_statistic("rstd", given.rstd);
  require_mean(check, given.kind, given.mean.has_value());
  if (given.mean) check_statistic("mean", *given.mean);
  return arguments;
}

NormBackwardArguments checked(const core::Arguments& check, const NormBackwardArguments& given,
                              Inputs& inputs) {
  require_kind(check, given.kind);
  NormBackwardArguments arguments = given;
  arguments.dy = checked_first(check, "dy", given.dy);
  inputs.add("dy", arguments.dy);
  const auto check_matrix = [&](std::string_view argument, const TensorView& view) {
    const TensorView matrix = checked_like(check, argument, view, given.dy);
    check.require_input_matrix(argument, matrix);
    inputs.add(argument, matrix);
    return matrix;
  };
  const auto check_statistic = [&](std::string_view argument, const TensorView& vector) {
    check_vector(check, argument, vector, {DType::kFloat32}, arguments.dy.shape[0],
                 arguments.dy.device);
    inputs.add(argument, vector);
  };
  arguments.x = check_matrix("x", given.x);
  if (given.residual_gradient) {
    arguments.residual_gradient = check_matrix("residual_gradient", *given.residual_gradient);
  }
  check_statistic("rstd", given.rstd);
  require_mean(check, given.kind, given.mean.has_value());
  if (given.mean) check_statistic("mean", *given.mean);
  return arguments;
}

NormGradients checked(const core::Arguments& check, const NormGradients& given,
                      const TensorView& given_dy, const NormBackwardArguments& arguments,
                      std::int64_t batches, Inputs& inputs) {
  const Device device = arguments.dy.device;
  const std::int64_t cols = arguments.dy.shape[1];
  NormGradients gradients = given;
  gradients.dx = checked_like(check, "dx", given.dx, given_dy);
  check.require_matrix("dx", gradients.dx);
  inputs.add_output("dx", gradients.dx);
  const auto check_row = [&](std::string_view argument,
                             const std::optional<MutableTensorView>& vector) {
    if (!vector) return;
    check_vector(check, argument, *vector, {DType::kFloat32}, cols, device);
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
  if (given.dscale) {
    require_where(check, "dscale", given.dscale, arguments.operands.scale.has_value(),
                  "without 'scale'");
    check_rows("dscale", *given.dscale, batches);
  }
  if (given.dshift) {
    require_where(check, "dshift", given.dshift, arguments.operands.shift.has_value(),
                  "without 'shift'");
    check_rows("dshift", *given.dshift, batches);
  }
  const bool sums = given.dweight || given.dbias || given.dscale || given.dshift;
  require_where(check, "workspace", given.workspace, sums,
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

void quantize_norm(const NormArguments& given, const CastTargets& out,
                   const QuantizeOptions& options, Stream stream) {
  const core::Arguments check("quantize_norm");
  Inputs inputs(check);
  const NormArguments arguments = checked(check, given, inputs);
  if (out.offsets) check.fail("offsets", "none of a norm", "some");
  const CastTargets targets =
      ops::checked_targets(check, out, ops::shape_of(given.x), inputs.all(), options.scales);
  const DType in = arguments.x.dtype;
  const config::CastFormat format = ops::format_of(check, options, in, targets);
  const Device device = arguments.x.device;
  if (ops::is_on_cpu(device)) {
    return cpu::quantize_norm(arguments, targets, format, options.scales);
  }
  cuda::quantize_norm(ops::gpu("quantize_norm", device), arguments, targets, format, options.scales,
                      stream);
}

std::int64_t norm_workspace_rows(std::int64_t cols, std::int64_t batches) {
  if (cols < 0 || batches < 0) {
    core::fail(ErrorCode::kInvalidArgument,
               "norm_workspace_rows: expected sizes of at least 0, got {} columns and {} batches",
               cols, batches);
  }
  return 2 * config::norm_spans(cols, batches);
}

void norm_backward(const NormBackwardArguments& given, const NormGradients& given_gradients,
                   Stream stream) {
  const core::Arguments check("norm_backward");
  Inputs inputs(check);
  const NormBackwardArguments arguments = checked(check, given, inputs);
  const std::int64_t batches = check_operands(check, arguments.operands, arguments.dy, inputs);
  const NormGradients gradients =
      checked(check, given_gradients, given.dy, arguments, batches, inputs);
  const Device device = arguments.dy.device;
  if (ops::is_on_cpu(device)) return cpu::norm_backward(arguments, gradients);
  cuda::norm_backward(ops::gpu("norm_backward", device), arguments, gradients, stream);
}

}  // namespace octofold
