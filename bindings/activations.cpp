#include "octofold/activations.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <type_traits>

#include "octofold/types.h"

#include "cast_arguments.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

namespace {

// Calls call(x) with x as it is, or in FP8.
template <typename Call>
void with_input(const CastOperation& operation, const tvm::ffi::TensorView& x,
                const OptionalTensor& x_scale, const OptionalText& x_granularity, Call&& call) {
  if (x_scale && x_granularity) {
    call(operation.scaled_input("x", x, *x_scale, *x_granularity));
  } else {
    call(operation.input("x", x));
  }
}

}  // namespace

void quantize_activation(tvm::ffi::TensorView x, OptionalTensor x_scale, OptionalTensor offsets,
                         OptionalTensor data, OptionalTensor scale, OptionalTensor transposed_data,
                         OptionalTensor transposed_scale, OptionalTensor sums, OptionalTensor amax,
                         OptionalTensor workspace, OptionalText x_granularity,
                         tvm::ffi::String activation, tvm::ffi::String layout,
                         tvm::ffi::String granularity, OptionalText transposed_granularity,
                         tvm::ffi::Optional<bool> power_of_two, tvm::ffi::String overflow,
                         tvm::ffi::String profile, OptionalText x_dtype, OptionalStream stream) {
  const CastOperation operation{"quantize_activation"};
  with_input(operation, x, x_scale, x_granularity, [&]<typename View>(const View& input) {
    const auto cast = [&](auto... of_input) {
      octofold::quantize_activation(
          of_input..., parse_activation(view_of(activation)), parse_gate_layout(view_of(layout)),
          operation.targets(data, scale, transposed_data, transposed_scale,
                            operation.columns(sums, amax, workspace), granularity,
                            transposed_granularity, offsets),
          options_of(power_of_two, overflow, profile), stream_of(stream, x));
    };
    if constexpr (std::is_same_v<View, ScaledTensorView>) {
      cast(input, x_dtype ? parse_dtype(view_of(*x_dtype)) : DType::kBFloat16);
    } else {
      cast(input);
    }
  });
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
                                  tvm::ffi::String profile, OptionalStream stream) {
  const CastOperation operation{"quantize_activation_gradient"};
  const TensorView by_value = operation.input("gradient", gradient);
  with_input(operation, x, x_scale, x_granularity, [&](const auto& input) {
    octofold::quantize_activation_gradient(
        by_value, input, parse_activation(view_of(activation)), parse_gate_layout(view_of(layout)),
        operation.targets(data, scale, transposed_data, transposed_scale,
                          operation.columns(sums, amax, workspace), granularity,
                          transposed_granularity, offsets),
        options_of(power_of_two, overflow, profile), stream_of(stream, x));
  });
}

OCTOFOLD_EXPORT(quantize_activation)
OCTOFOLD_EXPORT(quantize_activation_gradient)

}  // namespace octofold::bindings
