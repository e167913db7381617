#include "octofold/grouped_gemm_weight_only.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "octofold/batch_invariant.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "ops/cast_sources.h"
#include "ops/grouped_operands.h"
#include "ops/inputs.h"
#include "ops/product.h"
#include "ops/scales.h"
#include "ops/weights.h"

namespace octofold {
namespace {

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
    product.x.data = ops::checked_halves(check, given.argument, x, inputs);
    return x.shape[0];
  }
  GatheredRows rows = *gathered;
  rows.x = ops::checked_halves(check, given.argument, gathered->x, inputs);
  if (rows.transposed_factors) {
    check.fail("transposed_factors", "none, as there is no transpose",
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
  product.x.data = ops::checked_halves(check, given.argument, *x, inputs);
  product.groups = ops::masked_groups(check, groups, given.argument, *x, "w", w);
  inputs.add("groups.counts", groups.counts);
  return {w.count, x->shape[1]};
}

// Checks all but the bias.
core::WeightOnlyProduct checked(const core::Arguments& check, const GivenRows& given,
                                const ScaledTensorView& given_w, const WeightOnlyGroups& groups,
                                const MutableTensorView& out, bool transposed) {
  ops::Inputs inputs(check);
  core::WeightOnlyProduct product{.transposed = transposed};
  const ops::Stack w = ops::checked_stack(check, "w", plan::kWeights, given_w);
  product.w = w.flat;
  std::array<std::int64_t, 3> shape = std::visit(
      [&](const auto& of) { return set_groups(check, given, of, w, inputs, product); }, groups);
  const TensorView& x = product.x.data;
  check.require_same_device("w", product.w.data, x.device);
  if (transposed) {
    ops::require_columns_of_gradient(check, x, w.rows);
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

void grouped_gemm_weight_only(const GroupedGemmWeightOnlyArguments& arguments, Stream stream) {
  constexpr std::string_view kCalled = "grouped_gemm_weight_only";
  const core::Arguments check(kCalled);
  core::WeightOnlyProduct product =
      checked(check, {"x", arguments.x}, arguments.w, arguments.groups, arguments.out, false);
  product.bias = ops::bias_of_groups(check, arguments.bias, product.groups.count, product.out);
  product.batch_invariant = arguments.batch_invariant || is_batch_invariant();
  product.candidate = arguments.candidate;
  ops::run(kCalled, product, stream);
}

void grouped_gemm_weight_only_gradient(const GroupedGemmWeightOnlyGradientArguments& arguments,
                                       Stream stream) {
  constexpr std::string_view kCalled = "grouped_gemm_weight_only_gradient";
  const core::Arguments check(kCalled);
  core::WeightOnlyProduct product = checked(check, {"gradient", arguments.gradient}, arguments.w,
                                            arguments.groups, arguments.out, true);
  product.batch_invariant = arguments.batch_invariant || is_batch_invariant();
  product.candidate = arguments.candidate;
  ops::run(kCalled, product, stream);
}

}  // namespace octofold
