#include "octofold/gemm_weight_only.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "octofold/batch_invariant.h"
#include "octofold/grouped_gemm_weight_only.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "kernels/weight_only/config/config.h"
#include "ops/backend.h"
#include "ops/cast_sources.h"
#include "ops/grouped_operands.h"
#include "ops/inputs.h"
#include "ops/product.h"

namespace octofold {
namespace {

// Checks 'w', a matrix on `device`, which joins the inputs.
void check_weights(const core::Arguments& check, const ScaledTensorView& w, Device device,
                   ops::Inputs& inputs) {
  check.require_scaled_input("w", w);
  check.require_same_device("w", w.data, device);
  inputs.add("w", w);
}

// A float16 or bfloat16 tensor that is read, as a matrix; it joins the inputs.
TensorView checked_halves(const core::Arguments& check, std::string_view argument,
                          const TensorView& given, ops::Inputs& inputs) {
  const TensorView halves = core::flatten(check, argument, given);
  check.require_input_matrix(argument, halves);
  check.require_dtype(argument, halves, {DType::kFloat16, DType::kBFloat16});
  inputs.add(argument, halves);
  return halves;
}

// Throws unless 'gradient', a matrix, has a column for each of so many rows of 'w'.
void require_columns_of_gradient(const core::Arguments& check, const TensorView& gradient,
                                 std::int64_t rows) {
  if (gradient.shape[1] == rows) return;
  check.fail("gradient", core::format("N = {} columns, the rows of 'w'", rows),
             core::format("{}", gradient.shape[1]));
}

bool is_half(const TensorView& tensor) { return size_of(tensor.dtype) == 2; }

// Returns x as a matrix. Many rows, and a bias, are for float16 and bfloat16.
DotOperand flat_x(const core::Arguments& check, const GemmWeightOnlyArguments& given,
                  ops::Inputs& inputs) {
  const DotOperand x = ops::flat_operand(check, "x", given.x, inputs);
  if (is_half(x.data)) return x;
  if (x.data.shape[0] > kMostVectors) {
    check.fail("x",
               core::format("at most {} rows of {} (of float16 and bfloat16 any number)",
                            kMostVectors, name(x.data.dtype)),
               core::format("{}", x.data.shape[0]));
  }
  if (given.bias) {
    check.fail("bias", core::format("it to be omitted beside an 'x' of {}", name(x.data.dtype)),
               core::describe(*given.bias));
  }
  return x;
}

// Returns out as a checked matrix: so many columns beside the leading dimensions of `rows`.
MutableTensorView flat_result(const core::Arguments& check, const MutableTensorView& given,
                              const TensorView& rows, std::int64_t columns,
                              const ops::Inputs& inputs) {
  ops::require_shape_of_result(check, "out", given, rows, columns);
  if (is_half(rows)) check.require_dtype("out", given, {rows.dtype, DType::kFloat32});
  const MutableTensorView out = core::flatten(check, "out", given);
  ops::check_output(check, out, inputs.all());
  return out;
}

void check_workspace(const core::Arguments& check,
                     const std::optional<MutableTensorView>& workspace, const TensorView& rows,
                     const MutableTensorView& out, ops::Inputs& inputs) {
  if (!workspace) return;
  ops::check_vector(check, "workspace", *workspace, {DType::kFloat32},
                    weight_only_workspace_size(out.shape[0], out.shape[1], rows.shape[1]),
                    out.device);
  inputs.add_output("out", out);
  inputs.add_output("workspace", *workspace);
}

core::WeightOnlyProduct checked(const GemmWeightOnlyArguments& given) {
  const core::Arguments check("gemm_weight_only");
  ops::Inputs inputs(check);
  core::WeightOnlyProduct product{.w = given.w,
                                  .bias = given.bias,
                                  .workspace = given.workspace,
                                  .batch_invariant = given.batch_invariant || is_batch_invariant(),
                                  .candidate = ops::used_candidate()};
  product.x = flat_x(check, given, inputs);
  const TensorView& x = product.x.data;
  check_weights(check, given.w, x.device, inputs);
  ops::require_depth(check, "x", x, "w", given.w.data);
  product.out = flat_result(check, given.out, given.x.data, given.w.data.shape[0], inputs);
  ops::check_bias(check, product.bias, product.out);
  if (product.bias) inputs.add("bias", *product.bias);
  check_workspace(check, given.workspace, x, product.out, inputs);
  return product;
}

core::WeightOnlyProduct checked(const GemmWeightOnlyGradientArguments& given) {
  const core::Arguments check("gemm_weight_only_gradient");
  ops::Inputs inputs(check);
  core::WeightOnlyProduct product{.w = given.w,
                                  .workspace = given.workspace,
                                  .transposed = true,
                                  .batch_invariant = given.batch_invariant || is_batch_invariant(),
                                  .candidate = ops::used_candidate()};
  product.x.data = checked_halves(check, "gradient", given.gradient, inputs);
  const TensorView& gradient = product.x.data;
  check_weights(check, given.w, gradient.device, inputs);
  require_columns_of_gradient(check, gradient, given.w.data.shape[0]);
  product.out = flat_result(check, given.out, given.gradient, given.w.data.shape[1], inputs);
  check_workspace(check, given.workspace, gradient, product.out, inputs);
  return product;
}

// The rows that are multiplied, as the caller has them.
struct GivenRows {
  std::string_view argument;
  const RowsOfGroups& rows;
};

void require_rank(const core::Arguments& check, std::string_view argument, const TensorView& tensor,
                  std::int32_t rank) {
  check.require_sizes(argument, tensor);
  if (tensor.rank != rank) {
    check.fail(argument, core::format("{} dimensions", rank), core::describe(tensor));
  }
}

// Sets x, and whence its rows are gathered; returns how many rows there are.
std::int64_t set_rows(const core::Arguments& check, const GivenRows& given, ops::Inputs& inputs,
                      core::WeightOnlyProduct& product) {
  const auto* gathered = std::get_if<GatheredRows>(&given.rows);
  if (gathered == nullptr) {
    const TensorView& x = std::get<TensorView>(given.rows);
    require_rank(check, given.argument, x, 2);
    product.x.data = checked_halves(check, given.argument, x, inputs);
    return x.shape[0];
  }
  GatheredRows rows = *gathered;
  rows.x = checked_halves(check, given.argument, gathered->x, inputs);
  if (rows.transposed_factors) {
    check.fail("transposed_factors", "it to be omitted, as there is no transpose",
               core::describe(*rows.transposed_factors));
  }
  ops::check_places(check, rows, inputs);
  product.x.data = rows.x;
  product.gathered = rows;
  return rows.sources.shape[0];
}

// Whatever groups there are: x, the groups themselves, and the sizes of what they come to; the last
// one, which W has, is still to be set.
std::array<std::int64_t, 3> set_groups(const core::Arguments& check, const GivenRows& given,
                                       const RowGroups& groups, const ops::Stack& w,
                                       ops::Inputs& inputs, core::WeightOnlyProduct& product) {
  const std::int64_t rows = set_rows(check, given, inputs, product);
  product.groups = ops::row_groups(check, groups, rows, w, product.x.data.device);
  inputs.add("groups.offsets", groups.offsets);
  return {rows};
}

std::array<std::int64_t, 3> set_groups(const core::Arguments& check, const GivenRows& given,
                                       const MaskedGroups& groups, const ops::Stack& w,
                                       ops::Inputs& inputs, core::WeightOnlyProduct& product) {
  const auto* x = std::get_if<TensorView>(&given.rows);
  if (x == nullptr) check.fail(given.argument, "a tensor beside MaskedGroups", "gathered rows");
  require_rank(check, given.argument, *x, 3);
  product.x.data = checked_halves(check, given.argument, *x, inputs);
  product.groups = ops::masked_groups(check, groups, given.argument, *x, "w", w);
  inputs.add("groups.counts", groups.counts);
  return {w.count, x->shape[1]};
}

// Checks all of a product of groups but the bias.
core::WeightOnlyProduct checked(const core::Arguments& check, const GivenRows& given,
                                const ScaledTensorView& given_w, const WeightOnlyGroups& groups,
                                const MutableTensorView& out, bool transposed) {
  ops::Inputs inputs(check);
  core::WeightOnlyProduct product{.transposed = transposed};
  const ops::Stack w = ops::checked_stack(check, "w", given_w);
  product.w = w.flat;
  std::array<std::int64_t, 3> shape = std::visit(
      [&](const auto& of) { return set_groups(check, given, of, w, inputs, product); }, groups);
  const TensorView& x = product.x.data;
  check.require_same_device("w", product.w.data, x.device);
  if (transposed) {
    require_columns_of_gradient(check, x, w.rows);
  } else {
    ops::require_depth(check, given.argument, x, "w", product.w.data);
  }
  inputs.add("w", {product.w.data, given_w.scale});
  const std::size_t rank = std::holds_alternative<MaskedGroups>(groups) ? 3 : 2;
  shape[rank - 1] = transposed ? product.w.data.shape[1] : w.rows;
  check.require_shape("out", out, std::span<const std::int64_t>(shape.data(), rank));
  check.require_dtype("out", out, {x.dtype, DType::kFloat32});
  product.out = core::flatten(check, "out", out);
  ops::check_output(check, product.out, inputs.all());
  return product;
}

}  // namespace

std::int64_t weight_only_workspace_size(std::int64_t rows, std::int64_t columns,
                                        std::int64_t depth) {
  const core::Arguments check("weight_only_workspace_size");
  check.require_size("rows", rows);
  check.require_size("columns", columns);
  check.require_size("depth", depth);
  return config::weight_only_workspace_elements(rows, columns, depth);
}

void gemm_weight_only(const GemmWeightOnlyArguments& arguments, Stream stream) {
  ops::run("gemm_weight_only", checked(arguments), stream);
}

void gemm_weight_only_gradient(const GemmWeightOnlyGradientArguments& arguments, Stream stream) {
  ops::run("gemm_weight_only_gradient", checked(arguments), stream);
}

void grouped_gemm_weight_only(const GroupedGemmWeightOnlyArguments& arguments, Stream stream) {
  constexpr std::string_view kCalled = "grouped_gemm_weight_only";
  const core::Arguments check(kCalled);
  core::WeightOnlyProduct product =
      checked(check, {"x", arguments.x}, arguments.w, arguments.groups, arguments.out, false);
  product.bias = ops::bias_of_groups(check, arguments.bias, product.groups.count, product.out);
  product.batch_invariant = arguments.batch_invariant || is_batch_invariant();
  product.candidate = ops::used_candidate();
  ops::run(kCalled, product, stream);
}

void grouped_gemm_weight_only_gradient(const GroupedGemmWeightOnlyGradientArguments& arguments,
                                       Stream stream) {
  constexpr std::string_view kCalled = "grouped_gemm_weight_only_gradient";
  const core::Arguments check(kCalled);
  core::WeightOnlyProduct product = checked(check, {"gradient", arguments.gradient}, arguments.w,
                                            arguments.groups, arguments.out, true);
  product.batch_invariant = arguments.batch_invariant || is_batch_invariant();
  product.candidate = ops::used_candidate();
  ops::run(kCalled, product, stream);
}

}  // namespace octofold
