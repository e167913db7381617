#include "octofold/gemm.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

using OptionalTensor = tvm::ffi::Optional<tvm::ffi::TensorView>;

// Tensors come first, then options, then the stream: in all of these functions.
void gemm(tvm::ffi::TensorView a, tvm::ffi::TensorView a_scale, tvm::ffi::TensorView b,
          tvm::ffi::TensorView b_scale, tvm::ffi::TensorView out, OptionalTensor c,
          OptionalTensor bias, tvm::ffi::String a_granularity, tvm::ffi::String b_granularity,
          bool fast_accumulation, OptionalStream stream) {
  GemmArguments arguments{.a = {view_of("gemm", "a", a), view_of("gemm", "a.scale", a_scale),
                                parse_granularity(view_of(a_granularity))},
                          .b = {view_of("gemm", "b", b), view_of("gemm", "b.scale", b_scale),
                                parse_granularity(view_of(b_granularity))},
                          .out = view_of("gemm", "out", out),
                          .fast_accumulation = fast_accumulation};
  if (c) arguments.c = view_of("gemm", "c", *c);
  if (bias) arguments.bias = view_of("gemm", "bias", *bias);
  octofold::gemm(arguments, stream_of(stream, out));
}

OCTOFOLD_EXPORT(gemm)

}  // namespace octofold::bindings
