// Checks that operands have scales which their operation takes.
#pragma once

#include <string_view>

#include "octofold/tensor.h"

#include "core/check.h"
#include "plan/operands.h"

namespace octofold::ops {

inline plan::Form form_of(const ScaledTensorView& tensor) {
  return plan::form_of(tensor.granularity, tensor.channel_scale.has_value());
}

/// Throws unless the operand is of a form that its rule has.
void require_scales(const core::Arguments& check, std::string_view argument,
                    const plan::OperandRule& rule, plan::Form form);

}  // namespace octofold::ops
