#include "octofold/gemm_weight_only.h"

#include <tvm/ffi/function.h>

#include "cast_arguments.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

void gemm_weight_only(tvm::ffi::TensorView x, tvm::ffi::TensorView w, tvm::ffi::TensorView w_scale,
                      OptionalTensor bias, tvm::ffi::TensorView out, tvm::ffi::String w_granularity,
                      OptionalStream stream) {
  constexpr CastOperation kOperation{"gemm_weight_only"};
  octofold::gemm_weight_only(
      {.x = view_of(kOperation.name, "x", x, "float16 or bfloat16"),
       .w = kOperation.scaled_input("w", w, w_scale, w_granularity),
       .out = view_of(kOperation.name, "out", out, "that of 'x' or float32"),
       .bias = kOperation.optional_input("bias", bias, "that of 'out' or float32")},
      stream_of(stream, out));
}

void gemm_weight_only_gradient(tvm::ffi::TensorView gradient, tvm::ffi::TensorView w,
                               tvm::ffi::TensorView w_scale, tvm::ffi::TensorView out,
                               tvm::ffi::String w_granularity, OptionalStream stream) {
  constexpr CastOperation kOperation{"gemm_weight_only_gradient"};
  octofold::gemm_weight_only_gradient(
      {.gradient = view_of(kOperation.name, "gradient", gradient, "float16 or bfloat16"),
       .w = kOperation.scaled_input("w", w, w_scale, w_granularity),
       .out = view_of(kOperation.name, "out", out, "that of 'gradient' or float32")},
      stream_of(stream, out));
}

OCTOFOLD_EXPORT(gemm_weight_only)
OCTOFOLD_EXPORT(gemm_weight_only_gradient)

}  // namespace octofold::bindings
