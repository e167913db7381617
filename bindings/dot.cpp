#include "octofold/dot.h"

#include <string>
#include <string_view>
#include <tvm/ffi/function.h>

#include "octofold/types.h"

#include "error.h"
#include "stream.h"
#include "tensor.h"
#include "text.h"

namespace octofold::bindings {
namespace {

DotOperand operand_of(std::string_view argument, const tvm::ffi::TensorView& data,
                      const OptionalTensor& scale, const OptionalText& granularity) {
  DotOperand operand{.data = view_of("dot", argument, data)};
  if (scale) operand.scale = view_of("dot", std::string(argument) + ".scale", *scale, "float32");
  if (granularity) operand.granularity = parse_granularity(view_of(*granularity));
  return operand;
}

}  // namespace

void dot(tvm::ffi::TensorView a, OptionalTensor a_scale, tvm::ffi::TensorView b,
         OptionalTensor b_scale, tvm::ffi::TensorView out, tvm::ffi::TensorView workspace,
         OptionalText a_granularity, OptionalText b_granularity, OptionalStream stream) {
  octofold::dot({.a = operand_of("a", a, a_scale, a_granularity),
                 .b = operand_of("b", b, b_scale, b_granularity),
                 .out = view_of("dot", "out", out, "float32"),
                 .workspace = view_of("dot", "workspace", workspace, "float32")},
                stream_of(stream, a));
}

OCTOFOLD_EXPORT(dot)

}  // namespace octofold::bindings
