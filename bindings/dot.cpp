#include "octofold/dot.h"

#include <tvm/ffi/function.h>

#include "dot_operand.h"
#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {
void dot(tvm::ffi::TensorView a, OptionalTensor a_scale, tvm::ffi::TensorView b,
         OptionalTensor b_scale, tvm::ffi::TensorView out, tvm::ffi::TensorView workspace,
         OptionalText a_granularity, OptionalText b_granularity, OptionalStream stream) {
  octofold::dot({.a = operand_of("dot", "a", a, a_scale, a_granularity),
                 .b = operand_of("dot", "b", b, b_scale, b_granularity),
                 .out = view_of("dot", "out", out, "float32"),
                 .workspace = view_of("dot", "workspace", workspace, "float32")},
                stream_of(stream, a));
}

OCTOFOLD_EXPORT(dot)

}  // namespace octofold::bindings
