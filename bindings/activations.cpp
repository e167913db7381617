#include <optional>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <variant>

#include "octofold/cast.h"

#include "cast_arguments.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

namespace {

// x as it is, or in FP8.
std::variant<TensorView, ScaledTensorView> input_of(const CastOperation& operation,
                                                    const tvm::ffi::TensorView& x,
                                                    const OptionalTensor& scale,
                                                    const OptionalText& granularity) {
  if (scale && granularity) return operation.scaled_input("x", x, *scale, *granularity);
  return operation.input("x", x);
}

}  // namespace

void quantize_activation(tvm::ffi::TensorView x, OptionalTensor x_scale, OptionalTensor offsets,
                         OptionalTensor data, OptionalTensor scale, OptionalTensor transposed_data,
                         OptionalTensor transposed_scale, OptionalTensor sums, OptionalTensor amax,
                         OptionalTensor workspace, OptionalText x_granularity,
                         tvm::ffi::String activation, tvm::ffi::String layout,
                         tvm::ffi::String granularity, OptionalText transposed_granularity,
                         tvm::ffi::Optional<bool> power_of_two, tvm::ffi::String overflow,
                         tvm::ffi::String rule, OptionalText x_dtype, OptionalStream stream) {
  const CastOperation operation{"cast"};
  Activated source{.x = input_of(operation, x, x_scale, x_granularity),
                   .activation = parse_activation(view_of(activation)),
                   .layout = parse_gate_layout(view_of(layout))};
  if (x_dtype) source.dtype = parse_dtype(view_of(*x_dtype));
  CastTargets targets = operation.targets({data, scale}, {transposed_data, transposed_scale},
                                          format_of(power_of_two, overflow, rule), granularity,
                                          transposed_granularity, ScaleSource::kComputed);
  targets.columns = operation.columns(sums, amax, workspace);
  targets.offsets = operation.offsets(offsets);
  octofold::cast(source, targets, stream_of(stream, x));
}

void quantize_activation_gradient(tvm::ffi::TensorView gradient, tvm::ffi::TensorView x,
                                  OptionalTensor x_scale, OptionalTensor offsets,
                                  OptionalTensor data, OptionalTensor scale,
                                  OptionalTensor transposed_data, OptionalTensor transposed_scale,
                                  OptionalTensor sums, OptionalTensor amax,
                                  OptionalTensor workspace, OptionalText x_granularity,
                                  tvm::ffi::String activation, tvm::ffi::String layout,
                                  tvm::ffi::String granularity, OptionalText transposed_granularity,
                                  tvm::ffi::Optional<bool> power_of_two, tvm::ffi::String overflow,
                                  tvm::ffi::String rule, OptionalStream stream) {
  const CastOperation operation{"cast"};
  const ActivationGradient source{.gradient = operation.input("gradient", gradient),
                                  .x = input_of(operation, x, x_scale, x_granularity),
                                  .activation = parse_activation(view_of(activation)),
                                  .layout = parse_gate_layout(view_of(layout))};
  CastTargets targets = operation.targets({data, scale}, {transposed_data, transposed_scale},
                                          format_of(power_of_two, overflow, rule), granularity,
                                          transposed_granularity, ScaleSource::kComputed);
  targets.columns = operation.columns(sums, amax, workspace);
  targets.offsets = operation.offsets(offsets);
  octofold::cast(source, targets, stream_of(stream, x));
}

OCTOFOLD_EXPORT(quantize_activation)
OCTOFOLD_EXPORT(quantize_activation_gradient)

}  // namespace octofold::bindings
