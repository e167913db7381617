#include "octofold/gemv.h"

#include <tvm/ffi/function.h>

#include "cast_arguments.h"
#include "dot_operand.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

void gemv(tvm::ffi::TensorView w, tvm::ffi::TensorView w_scale, tvm::ffi::TensorView x,
          OptionalTensor x_scale, tvm::ffi::TensorView out, tvm::ffi::String w_granularity,
          OptionalText x_granularity, OptionalStream stream) {
  octofold::gemv({.w = CastOperation{"gemv"}.scaled_input("w", w, w_scale, w_granularity),
                  .x = operand_of("gemv", "x", x, x_scale, x_granularity),
                  .out = view_of("gemv", "out", out, "float32, float16 or bfloat16")},
                 stream_of(stream, out));
}

OCTOFOLD_EXPORT(gemv)

}  // namespace octofold::bindings
