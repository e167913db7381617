#include <cstdint>
#include <optional>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "octofold/norm.h"
#include "octofold/norm_gradient.h"

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

using OptionalView = std::optional<TensorView>;
using OptionalMutableView = std::optional<MutableTensorView>;

// Tensors of numbers, some of which are left out.
struct Tensors : CastOperation {
  static constexpr std::string_view kNumbers = "float32, float16 or bfloat16";

  OptionalView input(std::string_view argument, const OptionalTensor& tensor) const {
    return optional(argument, tensor, kNumbers);
  }
  MutableTensorView output(std::string_view argument, const tvm::ffi::TensorView& tensor) const {
    return view_of(name, argument, tensor, kNumbers);
  }
  OptionalMutableView output(std::string_view argument, const OptionalTensor& tensor) const {
    return optional<MutableTensorView>(argument, tensor, kNumbers);
  }
  NormOperands operands(const OptionalTensor& weight, const OptionalTensor& bias,
                        const OptionalTensor& ada_scale, const OptionalTensor& ada_shift) const {
    return {.weight = input("weight", weight),
            .bias = input("bias", bias),
            .ada_scale = input("ada_scale", ada_scale),
            .ada_shift = input("ada_shift", ada_shift)};
  }
  using CastOperation::input;
};

}  // namespace

void norm(tvm::ffi::TensorView x, OptionalTensor weight, OptionalTensor bias,
          OptionalTensor residual, OptionalTensor ada_scale, OptionalTensor ada_shift,
          tvm::ffi::TensorView y, OptionalTensor sum, tvm::ffi::TensorView rstd,
          OptionalTensor mean, tvm::ffi::String kind, double epsilon, OptionalStream stream) {
  const Tensors tensors{{"norm"}};
  octofold::norm({.kind = parse_norm(view_of(kind)),
                  .epsilon = static_cast<float>(epsilon),
                  .x = tensors.input("x", x),
                  .residual = tensors.input("residual", residual),
                  .operands = tensors.operands(weight, bias, ada_scale, ada_shift),
                  .sum = tensors.output("sum", sum),
                  .rstd = tensors.output("rstd", rstd),
                  .mean = tensors.output("mean", mean)},
                 tensors.output("y", y), stream_of(stream, x));
}

void norm_gradient(tvm::ffi::TensorView gradient, tvm::ffi::TensorView x, tvm::ffi::TensorView rstd,
                   OptionalTensor mean, OptionalTensor weight, OptionalTensor bias,
                   OptionalTensor ada_scale, OptionalTensor ada_shift,
                   OptionalTensor residual_gradient, tvm::ffi::TensorView dx,
                   OptionalTensor dweight, OptionalTensor dbias, OptionalTensor d_ada_scale,
                   OptionalTensor d_ada_shift, OptionalTensor workspace, tvm::ffi::String norm,
                   OptionalStream stream) {
  const Tensors tensors{{"norm_gradient"}};
  octofold::norm_gradient(
      {.kind = parse_norm(view_of(norm)),
       .gradient = tensors.input("gradient", gradient),
       .x = tensors.input("x", x),
       .rstd = tensors.input("rstd", rstd),
       .mean = tensors.input("mean", mean),
       .operands = tensors.operands(weight, bias, ada_scale, ada_shift),
       .residual_gradient = tensors.input("residual_gradient", residual_gradient)},
      {.dx = tensors.output("dx", dx),
       .dweight = tensors.output("dweight", dweight),
       .dbias = tensors.output("dbias", dbias),
       .d_ada_scale = tensors.output("d_ada_scale", d_ada_scale),
       .d_ada_shift = tensors.output("d_ada_shift", d_ada_shift),
       .workspace = tensors.output("workspace", workspace)},
      stream_of(stream, gradient));
}

int64_t norm_workspace_rows(int64_t cols, int64_t batches) {
  return octofold::norm_workspace_rows(cols, batches);
}

OCTOFOLD_EXPORT(norm)
OCTOFOLD_EXPORT(norm_gradient)
OCTOFOLD_EXPORT(norm_workspace_rows)

}  // namespace octofold::bindings
