#include "octofold/gemm.h"

#include <tvm/ffi/function.h>

#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

// Inputs come first, then what is written, then options, then the stream: in all of these
// functions.
void gemm(tvm::ffi::TensorView a, tvm::ffi::TensorView a_scale, tvm::ffi::TensorView b,
          tvm::ffi::TensorView b_scale, OptionalTensor c, OptionalTensor bias,
          tvm::ffi::TensorView out, tvm::ffi::String a_granularity, tvm::ffi::String b_granularity,
          bool fast_accumulation, OptionalStream stream) {
  GemmArguments arguments{
      .a = {view_of("gemm", "a", a, "e4m3 or e5m2"), view_of("gemm", "a.scale", a_scale, "float32"),
            parse_granularity(view_of(a_granularity))},
      .b = {view_of("gemm", "b", b, "e4m3 or e5m2"), view_of("gemm", "b.scale", b_scale, "float32"),
            parse_granularity(view_of(b_granularity))},
      .out = view_of("gemm", "out", out, "bfloat16, float16 or float32"),
      .fast_accumulation = fast_accumulation};
  if (c) arguments.c = view_of("gemm", "c", *c, "that of 'out' or float32");
  if (bias) arguments.bias = view_of("gemm", "bias", *bias, "that of 'out' or float32");
  octofold::gemm(arguments, stream_of(stream, out));
}

OCTOFOLD_EXPORT(gemm)

}  // namespace octofold::bindings
