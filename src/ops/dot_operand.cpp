#include "ops/dot_operand.h"

#include "core/flatten.h"

namespace octofold::ops {

DotOperand flat_operand(const core::Arguments& check, std::string_view argument,
                        const DotOperand& given, Inputs& inputs) {
  DotOperand operand = given;
  if (given.scale) {
    const ScaledTensorView flat = core::flatten(
        check, argument, ScaledTensorView{given.data, *given.scale, given.granularity});
    check.require_scaled_input(argument, flat);
    operand.data = flat.data;
    operand.scale = flat.scale;
    inputs.add(argument, flat.scale, ".scale");
  } else {
    operand.data = core::flatten(check, argument, given.data);
    check.require_input_matrix(argument, operand.data);
    check.require_dtype(
        argument, operand.data,
        {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kE4M3, DType::kE5M2});
  }
  inputs.add(argument, operand.data);
  return operand;
}

}  // namespace octofold::ops
