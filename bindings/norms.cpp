#include "octofold/norms.h"

#include <cstdint>
#include <optional>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "cast_arguments.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {
namespace {

using OptionalView = std::optional<TensorView>;
using OptionalMutableView = std::optional<MutableTensorView>;

// Tensors of an operation, some of which are left out.
struct Tensors : CastOperation {
  MutableTensorView output(std::string_view argument, const tvm::ffi::TensorView& tensor) const {
    return view_of(name, argument, tensor, "float32, float16 or bfloat16");
  }
  OptionalView input(std::string_view argument, const OptionalTensor& tensor) const {
    return tensor ? OptionalView(CastOperation::input(argument, *tensor)) : std::nullopt;
  }
  OptionalMutableView output(std::string_view argument, const OptionalTensor& tensor) const {
    return tensor ? OptionalMutableView(output(argument, *tensor)) : std::nullopt;
  }
  NormOperands operands(const OptionalTensor& weight, const OptionalTensor& bias,
                        const OptionalTensor& scale, const OptionalTensor& shift) const {
    return {.weight = input("weight", weight),
            .bias = input("bias", bias),
            .scale = input("scale", scale),
            .shift = input("shift", shift)};
  }
  using CastOperation::input;
};

}  // namespace

void quantize_norm(tvm::ffi::TensorView x, OptionalTensor weight, OptionalTensor bias,
                   OptionalTensor residual, OptionalTensor scale, OptionalTensor shift,
                   OptionalTensor data, OptionalTensor data_scale, OptionalTensor transposed_data,
                   OptionalTensor transposed_scale, OptionalTensor column_sums,
                   OptionalTensor column_amax, OptionalTensor workspace, OptionalTensor sum,
                   tvm::ffi::TensorView rstd, OptionalTensor mean, tvm::ffi::String norm,
                   double epsilon, tvm::ffi::String granularity,
                   tvm::ffi::Optional<bool> power_of_two, tvm::ffi::String overflow,
                   tvm::ffi::String profile, OptionalStream stream) {
  const Tensors tensors{{"quantize_norm"}};
  const NormArguments arguments{.kind = parse_norm(view_of(norm)),
                                .epsilon = static_cast<float>(epsilon),
                                .x = tensors.input("x", x),
                                .residual = tensors.input("residual", residual),
                                .operands = tensors.operands(weight, bias, scale, shift),
                                .sum = tensors.output("sum", sum),
                                .rstd = tensors.output("rstd", rstd),
                                .mean = tensors.output("mean", mean)};
  octofold::quantize_norm(
      arguments,
      tensors.targets(data, data_scale, transposed_data, transposed_scale,
                      tensors.columns(column_sums, column_amax, workspace), granularity, {}),
      options_of(power_of_two, overflow, profile), stream_of(stream, x));
}

void norm_backward(tvm::ffi::TensorView dy, tvm::ffi::TensorView x, tvm::ffi::TensorView rstd,
                   OptionalTensor mean, OptionalTensor weight, OptionalTensor bias,
                   OptionalTensor scale, OptionalTensor shift, OptionalTensor residual_gradient,
                   tvm::ffi::TensorView dx, OptionalTensor dweight, OptionalTensor dbias,
                   OptionalTensor dscale, OptionalTensor dshift, OptionalTensor workspace,
                   tvm::ffi::String norm, OptionalStream stream) {
  const Tensors tensors{{"norm_backward"}};
  octofold::norm_backward(
      {.kind = parse_norm(view_of(norm)),
       .dy = tensors.input("dy", dy),
       .x = tensors.input("x", x),
       .rstd = tensors.input("rstd", rstd),
       .mean = tensors.input("mean", mean),
       .operands = tensors.operands(weight, bias, scale, shift),
       .residual_gradient = tensors.input("residual_gradient", residual_gradient)},
      {.dx = tensors.output("dx", dx),
       .dweight = tensors.output("dweight", dweight),
       .dbias = tensors.output("dbias", dbias),
       .dscale = tensors.output("dscale", dscale),
       .dshift = tensors.output("dshift", dshift),
       .workspace = tensors.output("workspace", workspace)},
      stream_of(stream, dy));
}

int64_t norm_workspace_rows(int64_t cols, int64_t batches) {
  return octofold::norm_workspace_rows(cols, batches);
}

OCTOFOLD_EXPORT(quantize_norm)
OCTOFOLD_EXPORT(norm_backward)
OCTOFOLD_EXPORT(norm_workspace_rows)

}  // namespace octofold::bindings
