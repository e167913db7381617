// Linear layers: a problem, and the two functions that compute it, which hold it.
#include "octofold/linear.h"

#include "export.h"
#include "layers.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::Array;
using tvm::ffi::String;
using Tensor = tvm::ffi::TensorView;

Format operand_format(const Words& words) {
  Format format = format_of(words[2].cast<tvm::ffi::Optional<bool>>(), words[3].cast<String>(),
                            words[4].cast<String>());
  format.dtype = parse_dtype(view_of(words[0].cast<String>()));
  format.granularity = parse_granularity(view_of(words[1].cast<String>()));
  return format;
}

LinearProduct product_of(const Words& words) {
  return {.a = operand_format(words[0].cast<Words>()),
          .b = operand_format(words[1].cast<Words>()),
          .fast_accumulation = words[2].cast<bool>(),
          .batch_invariant = words[3].cast<bool>()};
}

}  // namespace

LinearRecipe recipe_of(const Array<Words>& products) {
  return {product_of(products[0]), product_of(products[1]), product_of(products[2])};
}

Device device_of(const OptionalGpu& gpu) {
  return gpu ? Device{DeviceType::kCuda, static_cast<std::int32_t>(*gpu)} : Device{};
}

std::span<std::byte> bytes_of(const OptionalTensor& tensor) {
  if (!tensor) return {};
  const Tensor memory = *tensor;
  std::size_t bytes = static_cast<std::size_t>(memory.dtype().bits) / 8;
  for (const std::int64_t size : memory.shape()) bytes *= static_cast<std::size_t>(size);
  return {static_cast<std::byte*>(memory.data_ptr()) + memory.byte_offset(), bytes};
}

std::variant<TensorView, ScaledTensorView> weight_of(const CastOperation& operation,
                                                     std::string_view argument,
                                                     const Tensor& weight,
                                                     const OptionalTensor& scale,
                                                     const LinearProduct& product) {
  if (!scale) return operation.input(argument, weight);
  return ScaledTensorView{
      view_of(operation.name, argument, weight, "e4m3 or e5m2"),
      view_of(operation.name, std::string(argument) + ".scale", *scale, "float32"),
      product.b.granularity};
}

std::optional<ScaledTensorView> transposed_of(const CastOperation& operation,
                                              std::string_view argument,
                                              const OptionalTensor& codes,
                                              const OptionalTensor& scale,
                                              const LinearProduct& product) {
  if (!codes) return std::nullopt;
  return ScaledTensorView{
      view_of(operation.name, argument, *codes, "e4m3 or e5m2"),
      view_of(operation.name, std::string(argument) + ".scale", scale.value(), "float32"),
      product.b.granularity};
}

namespace {

void forward(const LinearProblem& problem, const Tensor& x, const OptionalText& activation,
             const Tensor& weight, const OptionalTensor& weight_scale, const OptionalTensor& bias,
             const OptionalTensor& y, const OptionalTensor& kept, const OptionalTensor& workspace,
             const OptionalStream& stream) {
  constexpr CastOperation kForward{"linear_forward"};
  std::optional<Activation> before;
  if (activation) before = parse_activation(view_of(*activation));
  linear_forward(
      problem,
      {.x = kForward.input("x", x),
       .activation = before,
       .weight = weight_of(kForward, "weight", weight, weight_scale, problem.recipe.output),
       .bias = kForward.optional("bias", bias, "that of 'y' or float32"),
       .y = written(kForward, "y", y),
       .kept = bytes_of(kept),
       .workspace = bytes_of(workspace)},
      stream_of(stream, x));
}

void backward(const LinearProblem& problem, const Tensor& dy,
              const OptionalTensor& weight_transposed, const OptionalTensor& weight_scale,
              const OptionalTensor& kept, const OptionalTensor& dx, const OptionalTensor& dw,
              const OptionalTensor& db, const OptionalTensor& workspace, bool adds_to_dw,
              const OptionalStream& stream) {
  constexpr CastOperation kBackward{"linear_backward"};
  linear_backward(
      problem,
      {.dy = kBackward.input("dy", dy),
       .weight_transposed = transposed_of(kBackward, "weight_transposed", weight_transposed,
                                          weight_scale, problem.recipe.grad_input),
       .dx = written(kBackward, "dx", dx),
       .dw = written(kBackward, "dw", dw),
       .db = written(kBackward, "db", db),
       .adds_to_dw = adds_to_dw,
       .kept = bytes_of(kept),
       .workspace = bytes_of(workspace)},
      stream_of(stream, dy));
}

}  // namespace

// The layer of a problem: forward, backward, and the bytes of linear_memory(). `wanted`: the
// gradients of x, weight and bias.
Words linear(std::int64_t tokens, std::int64_t in_features, std::int64_t out_features,
             Array<Words> products, Array<bool> wanted, bool weight_is_cast, OptionalGpu gpu) {
  const LinearProblem problem{.tokens = tokens,
                              .in_features = in_features,
                              .out_features = out_features,
                              .recipe = recipe_of(products),
                              .grad_input = wanted[0],
                              .grad_weight = wanted[1],
                              .grad_bias = wanted[2],
                              .weight_is_cast = weight_is_cast,
                              .device = device_of(gpu)};
  return layer_of(holding<&forward>("linear_forward", problem),
                  holding<&backward>("linear_backward", problem), linear_memory(problem));
}

OCTOFOLD_EXPORT(linear)

}  // namespace octofold::bindings
