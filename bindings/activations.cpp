#include "octofold/activations.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "cast_arguments.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

void quantize_activation(tvm::ffi::TensorView x, OptionalTensor data, OptionalTensor scale,
                         OptionalTensor transposed_data, OptionalTensor transposed_scale,
                         OptionalTensor sums, OptionalTensor amax, OptionalTensor workspace,
                         tvm::ffi::String activation, tvm::ffi::String layout,
                         tvm::ffi::String granularity, OptionalText transposed_granularity,
                         tvm::ffi::Optional<bool> power_of_two, tvm::ffi::String overflow,
                         tvm::ffi::String profile, OptionalStream stream) {
  const CastOperation operation{"quantize_activation"};
  const TensorView input = operation.input("x", x);
  octofold::quantize_activation(input, parse_activation(view_of(activation)),
                                parse_gate_layout(view_of(layout)),
                                operation.targets(data, scale, transposed_data, transposed_scale,
                                                  operation.columns(sums, amax, workspace),
                                                  granularity, transposed_granularity),
                                options_of(power_of_two, overflow, profile), stream_of(stream, x));
}

void quantize_activation_gradient(tvm::ffi::TensorView gradient, tvm::ffi::TensorView x,
                                  OptionalTensor data, OptionalTensor scale,
                                  OptionalTensor transposed_data, OptionalTensor transposed_scale,
                                  OptionalTensor sums, OptionalTensor amax,
                                  OptionalTensor workspace, tvm::ffi::String activation,
                                  tvm::ffi::String layout, tvm::ffi::String granularity,
                                  OptionalText transposed_granularity,
                                  tvm::ffi::Optional<bool> power_of_two, tvm::ffi::String overflow,
                                  tvm::ffi::String profile, OptionalStream stream) {
  const CastOperation operation{"quantize_activation_gradient"};
  const TensorView by_value = operation.input("gradient", gradient);
  const TensorView input = operation.input("x", x);
  octofold::quantize_activation_gradient(
      by_value, input, parse_activation(view_of(activation)), parse_gate_layout(view_of(layout)),
      operation.targets(data, scale, transposed_data, transposed_scale,
                        operation.columns(sums, amax, workspace), granularity,
                        transposed_granularity),
      options_of(power_of_two, overflow, profile), stream_of(stream, x));
}

OCTOFOLD_EXPORT(quantize_activation)
OCTOFOLD_EXPORT(quantize_activation_gradient)

}  // namespace octofold::bindings
