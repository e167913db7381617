#include "octofold/gemm.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "error.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

using OptionalTensor = tvm::ffi::Optional<tvm::ffi::TensorView>;

void gemm(tvm::ffi::TensorView a, tvm::ffi::TensorView a_scale, tvm::ffi::String a_granularity,
          tvm::ffi::TensorView b, tvm::ffi::TensorView b_scale, tvm::ffi::String b_granularity,
          tvm::ffi::TensorView out, OptionalTensor c, OptionalTensor bias, bool fast_accumulation) {
  GemmArguments arguments{.a = {view_of("gemm", "a", a), view_of("gemm", "a.scale", a_scale),
                                parse_granularity(view_of(a_granularity))},
                          .b = {view_of("gemm", "b", b), view_of("gemm", "b.scale", b_scale),
                                parse_granularity(view_of(b_granularity))},
                          .out = view_of("gemm", "out", out),
                          .fast_accumulation = fast_accumulation};
  if (c) arguments.c = view_of("gemm", "c", *c);
  if (bias) arguments.bias = view_of("gemm", "bias", *bias);
  octofold::gemm(arguments);
}

OCTOFOLD_EXPORT(gemm)

}  // namespace octofold::bindings
