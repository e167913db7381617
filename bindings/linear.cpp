// Linear layers: a problem, and the two functions that compute it, which hold it.
#include "octofold/linear.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::String;
using Tensor = tvm::ffi::TensorView;

constexpr CastOperation kForward{"linear_forward"}, kBackward{"linear_backward"};
constexpr std::string_view kWritten = "bfloat16, float16 or float32";

// dtype, granularity, power_of_two, overflow, rule.
Format operand_format(const Array<Any>& words) {
  Format format = format_of(words[2].cast<tvm::ffi::Optional<bool>>(), words[3].cast<String>(),
                            words[4].cast<String>());
  format.dtype = parse_dtype(view_of(words[0].cast<String>()));
  format.granularity = parse_granularity(view_of(words[1].cast<String>()));
  return format;
}

// The formats of a and b, fast_accumulation, batch_invariant.
LinearProduct product_of(const Array<Any>& words) {
  return {.a = operand_format(words[0].cast<Array<Any>>()),
          .b = operand_format(words[1].cast<Array<Any>>()),
          .fast_accumulation = words[2].cast<bool>(),
          .batch_invariant = words[3].cast<bool>()};
}

// All of a tensor without gaps; of none nothing.
std::span<std::byte> bytes_of(const OptionalTensor& tensor) {
  if (!tensor) return {};
  const Tensor memory = *tensor;
  std::size_t bytes = static_cast<std::size_t>(memory.dtype().bits) / 8;
  for (const std::int64_t size : memory.shape()) bytes *= static_cast<std::size_t>(size);
  return {static_cast<std::byte*>(memory.data_ptr()) + memory.byte_offset(), bytes};
}

std::optional<MutableTensorView> written(std::string_view argument, const OptionalTensor& tensor) {
  return kBackward.optional<MutableTensorView>(argument, tensor, kWritten);
}

void forward(const LinearProblem& problem, const Tensor& x, const Tensor& weight,
             const OptionalTensor& weight_scale, const OptionalTensor& bias, const Tensor& y,
             const OptionalTensor& kept, const OptionalTensor& workspace,
             const OptionalStream& stream) {
  LinearForward arguments{.x = kForward.input("x", x),
                          .weight = {},
                          .bias = kForward.optional("bias", bias, "that of 'y' or float32"),
                          .y = view_of(kForward.name, "y", y, kWritten),
                          .kept = bytes_of(kept),
                          .workspace = bytes_of(workspace)};
  if (weight_scale) {
    arguments.weight =
        ScaledTensorView{view_of(kForward.name, "weight", weight, "e4m3 or e5m2"),
                         view_of(kForward.name, "weight.scale", *weight_scale, "float32"),
                         problem.recipe.output.b.granularity};
  } else {
    arguments.weight = kForward.input("weight", weight);
  }
  linear_forward(problem, arguments, stream_of(stream, x));
}

void backward(const LinearProblem& problem, const Tensor& dy,
              const OptionalTensor& weight_transposed, const OptionalTensor& weight_scale,
              const OptionalTensor& kept, const OptionalTensor& dx, const OptionalTensor& dw,
              const OptionalTensor& db, const OptionalTensor& workspace, bool adds_to_dw,
              const OptionalStream& stream) {
  LinearBackward arguments{.dy = kBackward.input("dy", dy),
                           .dx = written("dx", dx),
                           .dw = written("dw", dw),
                           .db = written("db", db),
                           .adds_to_dw = adds_to_dw,
                           .kept = bytes_of(kept),
                           .workspace = bytes_of(workspace)};
  if (weight_transposed) {
    arguments.weight_transposed = ScaledTensorView{
        view_of(kBackward.name, "weight_transposed", *weight_transposed, "e4m3 or e5m2"),
        view_of(kBackward.name, "weight_transposed.scale", weight_scale.value(), "float32"),
        problem.recipe.grad_input.b.granularity};
  }
  linear_backward(problem, arguments, stream_of(stream, dy));
}

}  // namespace

// The layer of a problem: forward, backward, and the bytes of linear_memory(). `products` are those
// of the recipe; `wanted`: the gradients of x, weight and bias; `gpu`: its number, none on the CPU.
Array<Any> linear(std::int64_t tokens, std::int64_t in_features, std::int64_t out_features,
                  Array<Array<Any>> products, Array<bool> wanted, bool weight_is_cast,
                  tvm::ffi::Optional<std::int64_t> gpu) {
  const LinearProblem problem{
      .tokens = tokens,
      .in_features = in_features,
      .out_features = out_features,
      .recipe = {product_of(products[0]), product_of(products[1]), product_of(products[2])},
      .grad_input = wanted[0],
      .grad_weight = wanted[1],
      .grad_bias = wanted[2],
      .weight_is_cast = weight_is_cast,
      .device = gpu ? Device{DeviceType::kCuda, static_cast<std::int32_t>(*gpu)} : Device{}};
  const LinearMemory memory = linear_memory(problem);
  return {holding<&forward>("linear_forward", problem),
          holding<&backward>("linear_backward", problem), memory.kept, memory.forward,
          memory.backward};
}

OCTOFOLD_EXPORT(linear)

}  // namespace octofold::bindings
