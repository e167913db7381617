#include "octofold/gemm_weight_only.h"

#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "cpu/gemm_weight_only.h"
#include "cuda/gemm_weight_only.h"
#include "kernels/weight_only/config/workspace.h"
#include "ops/backend.h"
#include "ops/dot_operand.h"
#include "ops/inputs.h"
#include "ops/product.h"
#include "ops/weights.h"

namespace octofold {
namespace {

bool is_half(const TensorView& tensor) { return size_of(tensor.dtype) == 2; }

// As a matrix. Many rows, and a bias, are for float16 and bfloat16.
DotOperand flat_x(const core::Arguments& check, const GemmWeightOnlyArguments& given,
                  ops::Inputs& inputs) {
  const DotOperand x = ops::flat_operand(check, "x", "x.scale", given.x, inputs);
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

TensorView flat_gradient(const core::Arguments& check, const TensorView& given,
                         ops::Inputs& inputs) {
  const TensorView gradient = core::flatten(check, "gradient", given);
  check.require_input_matrix("gradient", gradient);
  check.require_dtype("gradient", gradient, {DType::kFloat16, DType::kBFloat16});
  inputs.add("gradient", gradient);
  return gradient;
}

// Of so many columns beside the leading dimensions of `rows`, as a matrix.
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

GemmWeightOnlyArguments checked(const GemmWeightOnlyArguments& given) {
  const core::Arguments check("gemm_weight_only");
  ops::Inputs inputs(check);
  GemmWeightOnlyArguments arguments = given;
  arguments.x = flat_x(check, given, inputs);
  const TensorView& x = arguments.x.data;
  ops::check_weights(check, given.w, x.device, inputs);
  ops::require_depth(check, "x", x, "w", given.w.data);
  arguments.out = flat_result(check, given.out, given.x.data, given.w.data.shape[0], inputs);
  ops::check_bias(check, arguments.bias, arguments.out);
  if (arguments.bias) inputs.add("bias", *arguments.bias);
  check_workspace(check, given.workspace, x, arguments.out, inputs);
  return arguments;
}

GemmWeightOnlyGradientArguments checked(const GemmWeightOnlyGradientArguments& given) {
  const core::Arguments check("gemm_weight_only_gradient");
  ops::Inputs inputs(check);
  GemmWeightOnlyGradientArguments arguments = given;
  arguments.gradient = flat_gradient(check, given.gradient, inputs);
  ops::check_weights(check, given.w, arguments.gradient.device, inputs);
  if (arguments.gradient.shape[1] != given.w.data.shape[0]) {
    check.fail("gradient", core::format("N = {} columns, the rows of 'w'", given.w.data.shape[0]),
               core::format("{}", arguments.gradient.shape[1]));
  }
  arguments.out = flat_result(check, given.out, given.gradient, given.w.data.shape[1], inputs);
  check_workspace(check, given.workspace, arguments.gradient, arguments.out, inputs);
  return arguments;
}

}  // namespace

std::int64_t weight_only_workspace_size(std::int64_t rows, std::int64_t columns,
                                        std::int64_t depth) {
  const core::Arguments check("weight_only_workspace_size");
  for (const auto& [argument, size] : {std::pair<std::string_view, std::int64_t>{"rows", rows},
                                       {"columns", columns},
                                       {"depth", depth}}) {
    if (size < 0) check.fail(argument, "0 or more", core::format("{}", size));
  }
  return config::weight_only_workspace_elements(rows, columns, depth);
}

void gemm_weight_only(const GemmWeightOnlyArguments& given, Stream stream) {
  const GemmWeightOnlyArguments arguments = checked(given);
  const Device device = arguments.out.device;
  if (arguments.out.element_count() == 0) return;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::gemm_weight_only(arguments);
  cuda::gemm_weight_only(ops::gpu("gemm_weight_only", device), arguments, stream);
}

void gemm_weight_only_gradient(const GemmWeightOnlyGradientArguments& given, Stream stream) {
  const GemmWeightOnlyGradientArguments arguments = checked(given);
  const Device device = arguments.out.device;
  if (arguments.out.element_count() == 0) return;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::gemm_weight_only_gradient(arguments);
  cuda::gemm_weight_only_gradient(ops::gpu("gemm_weight_only_gradient", device), arguments, stream);
}

}  // namespace octofold
