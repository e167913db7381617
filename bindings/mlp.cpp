// A norm and a linear layer, and MLPs: as linear.cpp has linear layers.
#include "octofold/mlp.h"

#include "octofold/norm_linear.h"

#include "export.h"
#include "layers.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::Array;
using tvm::ffi::String;
using Tensor = tvm::ffi::TensorView;

constexpr std::string_view kNumbers = "float32, float16 or bfloat16";

NormOperands operands_of(const CastOperation& operation, const OptionalTensor& weight,
                         const OptionalTensor& bias) {
  return {.weight = operation.optional("operands.weight", weight, kNumbers),
          .bias = operation.optional("operands.bias", bias, kNumbers)};
}

InputNorm norm_of(const String& kind, double epsilon) {
  return {parse_norm(view_of(kind)), static_cast<float>(epsilon)};
}

void forward_of_norm(const NormLinearProblem& problem, const Tensor& x,
                     const OptionalTensor& residual, const OptionalTensor& norm_weight,
                     const OptionalTensor& norm_bias, const OptionalTensor& sum,
                     const Tensor& weight, const OptionalTensor& weight_scale,
                     const OptionalTensor& bias, const Tensor& y, const OptionalTensor& kept,
                     const OptionalTensor& workspace, const OptionalStream& stream) {
  constexpr CastOperation kForward{"norm_linear_forward"};
  norm_linear_forward(
      problem,
      {.x = kForward.input("x", x),
       .residual = kForward.optional("residual", residual, kNumbers),
       .operands = operands_of(kForward, norm_weight, norm_bias),
       .sum = written(kForward, "sum", sum),
       .weight = weight_of(kForward, "weight", weight, weight_scale, problem.linear.recipe.output),
       .bias = kForward.optional("bias", bias, "that of 'y' or float32"),
       .y = view_of(kForward.name, "y", y, kNumbers),
       .kept = bytes_of(kept),
       .workspace = bytes_of(workspace)},
      stream_of(stream, x));
}

void backward_of_norm(const NormLinearProblem& problem, const Tensor& dy, const OptionalTensor& x,
                      const OptionalTensor& norm_weight, const OptionalTensor& norm_bias,
                      const OptionalTensor& sum_gradient, const OptionalTensor& weight_transposed,
                      const OptionalTensor& weight_scale, const OptionalTensor& kept,
                      const OptionalTensor& dx, const OptionalTensor& dnorm_weight,
                      const OptionalTensor& dnorm_bias, const OptionalTensor& dw,
                      const OptionalTensor& db, bool adds_to_dw, const OptionalTensor& workspace,
                      const OptionalStream& stream) {
  constexpr CastOperation kBackward{"norm_linear_backward"};
  norm_linear_backward(
      problem,
      {.dy = kBackward.input("dy", dy),
       .x = kBackward.optional("x", x, kNumbers),
       .operands = operands_of(kBackward, norm_weight, norm_bias),
       .sum_gradient = kBackward.optional("sum_gradient", sum_gradient, kNumbers),
       .weight_transposed = transposed_of(kBackward, "weight_transposed", weight_transposed,
                                          weight_scale, problem.linear.recipe.grad_input),
       .dx = written(kBackward, "dx", dx),
       .dnorm_weight = written(kBackward, "dnorm_weight", dnorm_weight),
       .dnorm_bias = written(kBackward, "dnorm_bias", dnorm_bias),
       .dw = written(kBackward, "dw", dw),
       .db = written(kBackward, "db", db),
       .adds_to_dw = adds_to_dw,
       .kept = bytes_of(kept),
       .workspace = bytes_of(workspace)},
      stream_of(stream, dy));
}

void forward_of_mlp(const MlpProblem& problem, const Tensor& x, const OptionalTensor& residual,
                    const OptionalTensor& norm_weight, const OptionalTensor& norm_bias,
                    const OptionalTensor& sum, const Tensor& up_weight,
                    const OptionalTensor& up_scale, const OptionalTensor& up_bias,
                    const Tensor& down_weight, const OptionalTensor& down_scale,
                    const OptionalTensor& down_bias, const Tensor& y, const OptionalTensor& kept,
                    const OptionalTensor& workspace, const OptionalStream& stream) {
  constexpr CastOperation kForward{"mlp_forward"};
  const LinearProduct& output = problem.recipe.output;
  mlp_forward(problem,
              {.x = kForward.input("x", x),
               .residual = kForward.optional("residual", residual, kNumbers),
               .operands = operands_of(kForward, norm_weight, norm_bias),
               .sum = written(kForward, "sum", sum),
               .up_weight = weight_of(kForward, "up_weight", up_weight, up_scale, output),
               .up_bias = kForward.optional("up_bias", up_bias, "that of 'y' or float32"),
               .down_weight = weight_of(kForward, "down_weight", down_weight, down_scale, output),
               .down_bias = kForward.optional("down_bias", down_bias, "that of 'y' or float32"),
               .y = view_of(kForward.name, "y", y, kNumbers),
               .kept = bytes_of(kept),
               .workspace = bytes_of(workspace)},
              stream_of(stream, x));
}

void backward_of_mlp(const MlpProblem& problem, const Tensor& dy, const OptionalTensor& x,
                     const OptionalTensor& norm_weight, const OptionalTensor& norm_bias,
                     const OptionalTensor& sum_gradient, const OptionalTensor& up_transposed,
                     const OptionalTensor& up_scale, const OptionalTensor& down_transposed,
                     const OptionalTensor& down_scale, const OptionalTensor& kept,
                     const OptionalTensor& dx, const OptionalTensor& dnorm_weight,
                     const OptionalTensor& dnorm_bias, const OptionalTensor& dup,
                     const OptionalTensor& dup_bias, bool adds_to_dup, const OptionalTensor& ddown,
                     const OptionalTensor& ddown_bias, bool adds_to_ddown,
                     const OptionalTensor& workspace, const OptionalStream& stream) {
  constexpr CastOperation kBackward{"mlp_backward"};
  const LinearProduct& grad_input = problem.recipe.grad_input;
  mlp_backward(problem,
               {.dy = kBackward.input("dy", dy),
                .x = kBackward.optional("x", x, kNumbers),
                .operands = operands_of(kBackward, norm_weight, norm_bias),
                .sum_gradient = kBackward.optional("sum_gradient", sum_gradient, kNumbers),
                .up_transposed =
                    transposed_of(kBackward, "up_transposed", up_transposed, up_scale, grad_input),
                .down_transposed = transposed_of(kBackward, "down_transposed", down_transposed,
                                                 down_scale, grad_input),
                .dx = written(kBackward, "dx", dx),
                .dnorm_weight = written(kBackward, "dnorm_weight", dnorm_weight),
                .dnorm_bias = written(kBackward, "dnorm_bias", dnorm_bias),
                .dup = written(kBackward, "dup", dup),
                .dup_bias = written(kBackward, "dup_bias", dup_bias),
                .ddown = written(kBackward, "ddown", ddown),
                .ddown_bias = written(kBackward, "ddown_bias", ddown_bias),
                .adds_to_dup = adds_to_dup,
                .adds_to_ddown = adds_to_ddown,
                .kept = bytes_of(kept),
                .workspace = bytes_of(workspace)},
               stream_of(stream, dy));
}

}  // namespace

// `sizes`: tokens, in, out. `wanted`: the gradients of x, weight and bias. `type`: that of x.
Words norm_linear(Array<std::int64_t> sizes, Array<Words> products, String norm, double epsilon,
                  String type, Array<bool> wanted, bool weight_is_cast, OptionalGpu gpu) {
  const NormLinearProblem problem{.linear = {.tokens = sizes[0],
                                             .in_features = sizes[1],
                                             .out_features = sizes[2],
                                             .recipe = recipe_of(products),
                                             .grad_input = wanted[0],
                                             .grad_weight = wanted[1],
                                             .grad_bias = wanted[2],
                                             .weight_is_cast = weight_is_cast,
                                             .device = device_of(gpu)},
                                  .norm = norm_of(norm, epsilon),
                                  .x = parse_dtype(view_of(type))};
  return layer_of(holding<&forward_of_norm>("norm_linear_forward", problem),
                  holding<&backward_of_norm>("norm_linear_backward", problem),
                  norm_linear_memory(problem));
}

// `sizes`: tokens, in, hidden, out. `types`: those of x and y. `wanted`: the gradients of x, of the
// first layer's weight and bias and of the second one's. `flags`: keeps_fp8, has_up_bias,
// weights_are_cast.
Words mlp(Array<std::int64_t> sizes, Array<Words> products, String activation, OptionalText norm,
          double epsilon, Array<String> types, Array<bool> wanted, Array<bool> flags,
          OptionalGpu gpu) {
  MlpProblem problem{.tokens = sizes[0],
                     .in_features = sizes[1],
                     .hidden_features = sizes[2],
                     .out_features = sizes[3],
                     .activation = parse_activation(view_of(activation)),
                     .recipe = recipe_of(products),
                     .x = parse_dtype(view_of(types[0])),
                     .y = parse_dtype(view_of(types[1])),
                     .grad_input = wanted[0],
                     .grad_up = wanted[1],
                     .grad_up_bias = wanted[2],
                     .grad_down = wanted[3],
                     .grad_down_bias = wanted[4],
                     .keeps_fp8 = flags[0],
                     .has_up_bias = flags[1],
                     .weights_are_cast = flags[2],
                     .device = device_of(gpu)};
  if (norm) problem.norm = norm_of(*norm, epsilon);
  return layer_of(holding<&forward_of_mlp>("mlp_forward", problem),
                  holding<&backward_of_mlp>("mlp_backward", problem), mlp_memory(problem));
}

OCTOFOLD_EXPORT(norm_linear)
OCTOFOLD_EXPORT(mlp)

}  // namespace octofold::bindings
