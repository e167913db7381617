// Layers of experts: as linear.cpp has linear layers.
#include "octofold/experts.h"

#include "export.h"
#include "layers.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::Array;
using tvm::ffi::String;
using Tensor = tvm::ffi::TensorView;

void forward_of_experts(const ExpertsProblem& problem, const Tensor& x, const Tensor& topk_ids,
                        const Tensor& topk_weights, const Tensor& up_weight,
                        const OptionalTensor& up_scale, const OptionalTensor& up_bias,
                        const Tensor& down_weight, const OptionalTensor& down_scale,
                        const OptionalTensor& down_bias, const Tensor& y,
                        const OptionalTensor& kept, const OptionalTensor& workspace,
                        const OptionalStream& stream) {
  constexpr CastOperation kForward{"experts_forward"};
  const LinearProduct& output = problem.recipe.output;
  experts_forward(
      problem,
      {.x = kForward.input("x", x),
       .topk_ids = view_of(kForward.name, "topk_ids", topk_ids, "int32"),
       .topk_weights = view_of(kForward.name, "topk_weights", topk_weights, "float32"),
       .up_weight = weight_of(kForward, "up_weight", up_weight, up_scale, output),
       .up_bias = kForward.optional("up_bias", up_bias, "that of 'y' or float32"),
       .down_weight = weight_of(kForward, "down_weight", down_weight, down_scale, output),
       .down_bias = kForward.optional("down_bias", down_bias, "that of 'y' or float32"),
       .y = view_of(kForward.name, "y", y, kNumbers),
       .kept = bytes_of(kept),
       .workspace = bytes_of(workspace)},
      stream_of(stream, x));
}

void backward_of_experts(const ExpertsProblem& problem, const Tensor& dy,
                         const Tensor& topk_weights, const OptionalTensor& topk_ids,
                         const OptionalTensor& down_bias, const OptionalTensor& up_transposed,
                         const OptionalTensor& up_scale, const OptionalTensor& down_transposed,
                         const OptionalTensor& down_scale, const OptionalTensor& kept,
                         const OptionalTensor& dx, const OptionalTensor& dtopk_weights,
                         const OptionalTensor& dup, const OptionalTensor& dup_bias,
                         bool adds_to_dup, const OptionalTensor& ddown,
                         const OptionalTensor& ddown_bias, bool adds_to_ddown,
                         const OptionalTensor& workspace, const OptionalStream& stream) {
  constexpr CastOperation kBackward{"experts_backward"};
  // With weight_only the weights themselves.
  const LinearProduct& grad_input =
      problem.weight_only ? problem.recipe.output : problem.recipe.grad_input;
  experts_backward(
      problem,
      {.dy = kBackward.input("dy", dy),
       .topk_weights = view_of(kBackward.name, "topk_weights", topk_weights, "float32"),
       .topk_ids = kBackward.optional("topk_ids", topk_ids, "int32"),
       .down_bias = kBackward.optional("down_bias", down_bias, "that of 'y' or float32"),
       .up_transposed =
           transposed_of(kBackward, "up_transposed", up_transposed, up_scale, grad_input),
       .down_transposed =
           transposed_of(kBackward, "down_transposed", down_transposed, down_scale, grad_input),
       .dx = written(kBackward, "dx", dx),
       .dtopk_weights = written(kBackward, "dtopk_weights", dtopk_weights),
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

// The layer of a problem, as linear() has it. `sizes`: tokens, slots, experts, in, hidden, out.
// `wanted`: the gradients of x and topk_weights, of the first layers' weights and biases and of the
// second ones'. `flags`: has_up_bias, has_down_bias, weights_are_cast. `weight_only`: the type of
// rows if the weights alone are FP8.
Words experts(Array<std::int64_t> sizes, Array<Words> products, String activation, String type,
              OptionalText weight_only, Array<bool> wanted, Array<bool> flags, OptionalGpu gpu) {
  ExpertsProblem problem{.tokens = sizes[0],
                         .slots = sizes[1],
                         .experts = sizes[2],
                         .in_features = sizes[3],
                         .hidden_features = sizes[4],
                         .out_features = sizes[5],
                         .activation = parse_activation(view_of(activation)),
                         .recipe = recipe_of(products),
                         .y = parse_dtype(view_of(type)),
                         .grad_input = wanted[0],
                         .grad_topk_weights = wanted[1],
                         .grad_up = wanted[2],
                         .grad_up_bias = wanted[3],
                         .grad_down = wanted[4],
                         .grad_down_bias = wanted[5],
                         .has_up_bias = flags[0],
                         .has_down_bias = flags[1],
                         .weights_are_cast = flags[2],
                         .device = device_of(gpu)};
  if (weight_only) problem.weight_only = parse_dtype(view_of(*weight_only));
  return layer_of(holding<&forward_of_experts>("experts_forward", problem),
                  holding<&backward_of_experts>("experts_backward", problem),
                  experts_memory(problem));
}

OCTOFOLD_EXPORT(experts)

}  // namespace octofold::bindings
