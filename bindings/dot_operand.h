// Numbers as they are, or FP8 codes with scales.
#pragma once

#include <string>
#include <string_view>

#include "octofold/dot.h"
#include "octofold/types.h"

#include "tensor.h"
#include "text.h"

namespace octofold::bindings {

inline DotOperand operand_of(std::string_view operation, std::string_view argument,
                             const tvm::ffi::TensorView& data, const OptionalTensor& scale,
                             const OptionalText& granularity) {
  DotOperand operand{.data = view_of(operation, argument, data)};
  if (scale) {
    operand.scale = view_of(operation, std::string(argument) + ".scale", *scale, "float32");
  }
  if (granularity) operand.granularity = parse_granularity(view_of(*granularity));
  return operand;
}

}  // namespace octofold::bindings
