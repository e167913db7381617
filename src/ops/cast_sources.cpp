#include "ops/cast_sources.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "core/flatten.h"
#include "ops/backend.h"

namespace octofold::ops {

TensorView checked_numbers(const core::Arguments& check, std::string_view argument,
                           const TensorView& given) {
  const TensorView matrix = core::flatten(check, argument, given);
  check.require_input_matrix(argument, matrix);
  check.require_dtype(argument, matrix, kNumbers);
  return matrix;
}

void require_norm_kind(const core::Arguments& check, NormKind kind) {
  if (kind == NormKind::kRms || kind == NormKind::kLayer) return;
  check.fail("norm", "a NormKind", core::format("{}", static_cast<int>(kind)));
}

void require_mean(const core::Arguments& check, NormKind kind, bool given) {
  const bool needed = kind == NormKind::kLayer;
  if (given == needed) return;
  check.fail("mean", needed ? "one for a LayerNorm" : "it to be omitted for an RMSNorm",
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

namespace {

using Shape = std::vector<std::int64_t>;
using NumbersOrCodes = std::variant<TensorView, ScaledTensorView>;

Shape shape_vector(const TensorView& tensor) {
  const auto shape = shape_of(tensor);
  return {shape.begin(), shape.end()};
}

const TensorView& data_of(const NumbersOrCodes& x) {
  const auto* scaled = std::get_if<ScaledTensorView>(&x);
  return scaled != nullptr ? scaled->data : std::get<TensorView>(x);
}

CheckedSource checked(const core::Arguments& check, const TensorView& given) {
  const TensorView x = checked_numbers(check, "x", given);
  return {x, x.dtype, shape_vector(given), {{"x", x}}};
}

// The checked input of an activation, flat. Its tensors join the inputs.
NumbersOrCodes checked_x(const core::Arguments& check, const NumbersOrCodes& given,
                         Activation activation, GateLayout layout, Inputs& inputs) {
  NumbersOrCodes x = given;
  if (const auto* scaled = std::get_if<ScaledTensorView>(&given)) {
    const ScaledTensorView codes = core::flatten(check, "x", *scaled);
    check.require_enumerator("x.granularity", scaled->granularity);
    check.require_scaled_input("x", codes);
    inputs.add("x", codes);
    x = codes;
  } else {
    x = checked_numbers(check, "x", std::get<TensorView>(given));
    inputs.add("x", std::get<TensorView>(x));
  }
  check.require_enumerator("activation", activation);
  check.require_enumerator("layout", layout);
  const TensorView& data = data_of(given);
  if (is_gated(activation) && data.shape[data.rank - 1] % 2 != 0) {
    check.fail("x",
               core::format("an even last dimension, gate and up, because {} takes both",
                            name(activation)),
               core::describe(data));
  }
  return x;
}

Shape activation_shape(const TensorView& x, Activation activation) {
  Shape shape = shape_vector(x);
  if (is_gated(activation)) shape.back() /= 2;
  return shape;
}

CheckedSource checked(const core::Arguments& check, const Activated& given) {
  Activated source = given;
  Inputs inputs(check);
  const bool of_codes = std::holds_alternative<ScaledTensorView>(given.x);
  if (of_codes) {
    check.require_enumerator("dtype", given.dtype);
    if (std::ranges::find(kNumbers, given.dtype) == kNumbers.end()) {
      check.fail("dtype", "float32, float16 or bfloat16, to which the values of x are rounded",
                 name(given.dtype));
    }
  }
  source.x = checked_x(check, given.x, given.activation, given.layout, inputs);
  const TensorView& x = data_of(given.x);
  if (!of_codes) source.dtype = x.dtype;
  return {source, source.dtype, activation_shape(x, given.activation), inputs.all()};
}

CheckedSource checked(const core::Arguments& check, const ActivationGradient& given) {
  ActivationGradient source = given;
  Inputs inputs(check);
  source.x = checked_x(check, given.x, given.activation, given.layout, inputs);
  const TensorView& x = data_of(given.x);
  check.require_shape("gradient", given.gradient, activation_shape(x, given.activation));
  source.gradient = checked_numbers(check, "gradient", given.gradient);
  if (std::holds_alternative<TensorView>(given.x)) {
    check.require_dtype("gradient", given.gradient, {x.dtype});
  }
  check.require_same_device("gradient", given.gradient, x.device);
  inputs.add("gradient", source.gradient);
  return {source, given.gradient.dtype, shape_vector(x), inputs.all()};
}

// The sum may be the residual itself.
void check_residual(const core::Arguments& check, const Normed& given, Normed& source,
                    Inputs& inputs) {
  require_where(check, "sum", given.sum, given.residual.has_value(),
                given.residual ? "where there is a residual" : "without a residual");
  if (!given.residual) return;
  source.residual = checked_like(check, "residual", *given.residual, given.x);
  check.require_input_matrix("residual", *source.residual);
  source.sum = checked_like(check, "sum", *given.sum, given.x);
  check.require_matrix("sum", *source.sum);
  inputs.add_output("sum", *source.sum);
  if (!is_same_memory(*source.sum, *source.residual)) {
    check.require_disjoint("sum", *source.sum, "residual", *source.residual);
  }
  inputs.add("residual", *source.residual);
}

CheckedSource checked(const core::Arguments& check, const Normed& given) {
  require_norm_kind(check, given.kind);
  if (!(given.epsilon >= 0 && std::isfinite(given.epsilon))) {
    check.fail("epsilon", "a finite number of at least 0", core::format("{}", given.epsilon));
  }
  Normed source = given;
  Inputs inputs(check);
  source.x = checked_numbers(check, "x", given.x);
  inputs.add("x", source.x);
  check_norm_operands(check, given.operands, source.x, inputs);
  check_residual(check, given, source, inputs);
  const auto check_statistic = [&](std::string_view argument, const TensorView& vector) {
    check_vector(check, argument, vector, {DType::kFloat32}, source.x.shape[0], source.x.device);
    inputs.add_output(argument, vector);
  };
  check_statistic("rstd", given.rstd);
  require_mean(check, given.kind, given.mean.has_value());
  if (given.mean) check_statistic("mean", *given.mean);
  return {source, given.x.dtype, shape_vector(given.x), inputs.all()};
}

void check_factors(const core::Arguments& check, std::string_view argument,
                   std::optional<TensorView>& given, const GatheredRows& rows, Inputs& inputs) {
  if (!given) return;
  const TensorView factors = core::flatten(check, argument, *given);
  check.require_dtype(argument, factors, {DType::kFloat32});
  check.require_same_device(argument, factors, rows.x.device);
  check.require_shape(argument, factors, {rows.x.shape[0], rows.slots});
  check.require_matrix(argument, factors);
  if (factors.shape[0] > 1 && factors.strides[0] != rows.slots) {
    check.fail(argument, "contiguous rows", core::describe(factors));
  }
  given = factors;
  inputs.add(argument, factors);
}

void require_places(const core::Arguments& check, const GatheredRows& rows) {
  const auto* sources = static_cast<const std::int32_t*>(rows.sources.data);
  for (std::int64_t i = 0; i < rows.sources.shape[0]; ++i) {
    if (sources[i] >= -1 && (sources[i] < 0 || sources[i] / rows.slots < rows.x.shape[0])) continue;
    check.fail("sources",
               core::format("places in {} rows of {} slots, or -1", rows.x.shape[0], rows.slots),
               core::format("{} at [{}]", sources[i], i));
  }
}

CheckedSource checked(const core::Arguments& check, const GatheredRows& given) {
  Inputs inputs(check);
  GatheredRows rows = given;
  rows.x = checked_numbers(check, "x", given.x);
  inputs.add("x", rows.x);
  check_places(check, rows, inputs);
  return {rows, rows.x.dtype, {rows.sources.shape[0], rows.x.shape[1]}, inputs.all()};
}

}  // namespace

void check_places(const core::Arguments& check, GatheredRows& rows, Inputs& inputs) {
  check.require_vector("sources", rows.sources);
  check.require_dtype("sources", rows.sources, {DType::kInt32});
  check.require_same_device("sources", rows.sources, rows.x.device);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (rows.slots < 1 || rows.slots > kMost) {
    check.fail("slots", core::format("1 to {}", kMost), core::format("{}", rows.slots));
  }
  inputs.add("sources", rows.sources);
  check_factors(check, "factors", rows.factors, rows, inputs);
  check_factors(check, "transposed_factors", rows.transposed_factors, rows, inputs);
  if (rows.factors && rows.transposed_factors) {
    check.fail("transposed_factors", "it to be omitted beside factors",
               core::describe(*rows.transposed_factors));
  }
  if (is_on_cpu(rows.x.device)) require_places(check, rows);
}

CheckedSource checked_source(const core::Arguments& check, const CastSource& source) {
  return std::visit([&](const auto& given) { return checked(check, given); }, source);
}

}  // namespace octofold::ops
