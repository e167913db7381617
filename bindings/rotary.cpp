#include "octofold/rotary.h"

#include <tvm/ffi/function.h>

#include "cast_arguments.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"

namespace octofold::bindings {

void rotary(tvm::ffi::TensorView x, tvm::ffi::TensorView cos, tvm::ffi::TensorView sin,
            tvm::ffi::TensorView y, bool inverse, OptionalStream stream) {
  const CastOperation tensors{"rotary"};
  octofold::rotary({.x = tensors.input("x", x),
                    .cos = tensors.input("cos", cos),
                    .sin = tensors.input("sin", sin),
                    .inverse = inverse},
                   view_of("rotary", "y", y, "float32, float16 or bfloat16"), stream_of(stream, x));
}

OCTOFOLD_EXPORT(rotary)

}  // namespace octofold::bindings
