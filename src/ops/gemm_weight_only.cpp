#include "octofold/gemm_weight_only.h"

#include <string_view>
#include <utility>

#include "octofold/batch_invariant.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "kernels/weight_only/config/weight_only.h"
#include "ops/dot_operand.h"
#include "ops/inputs.h"
#include "ops/product.h"
#include "ops/weights.h"

namespace octofold {
namespace {

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
    check.fail("bias", core::format("none beside an 'x' of {}", name(x.data.dtype)),
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
  check.require_vector("workspace", *workspace);
  check.require_dtype("workspace", *workspace, {DType::kFloat32});
  check.require_shape("workspace", *workspace,
                      {weight_only_workspace_size(out.shape[0], out.shape[1], rows.shape[1])});
  check.require_same_device("workspace", *workspace, out.device);
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
                                  .candidate = given.candidate};
  product.x = flat_x(check, given, inputs);
  const TensorView& x = product.x.data;
  ops::check_weights(check, given.w, x.device, inputs);
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
                                  .candidate = given.candidate};
  product.x.data = ops::checked_halves(check, "gradient", given.gradient, inputs);
  const TensorView& gradient = product.x.data;
  ops::check_weights(check, given.w, gradient.device, inputs);
  ops::require_columns_of_gradient(check, gradient, given.w.data.shape[0]);
  product.out = flat_result(check, given.out, given.gradient, given.w.data.shape[1], inputs);
  check_workspace(check, given.workspace, gradient, product.out, inputs);
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

}  // namespace octofold
