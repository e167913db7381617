// Numbers as they are, or FP8 codes with scales, where an operation takes either.
#pragma once

#include <string_view>

#include "octofold/dot.h"

#include "core/check.h"
#include "ops/inputs.h"

namespace octofold::ops {

/// The operand as a matrix, its scale as one for it: checked, and among `inputs`.
DotOperand flat_operand(const core::Arguments& check, std::string_view argument,
                        const DotOperand& given, Inputs& inputs);

}  // namespace octofold::ops
