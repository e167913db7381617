// What gemm() takes, apart from its tensors.
#pragma once

#include <string_view>

#include "octofold/gemm_form.h"
#include "octofold/tensor.h"

#include "core/check.h"

namespace octofold::ops {

/// Throws Error(kInvalidArgument), in the name of `operation`, for a form that gemm() has not.
void require_form(std::string_view operation, const GemmForm& form);

/// Of matrices [M, K] and [N, K], arguments 'a' and 'b'.
void check_operands(const core::Arguments& check, const ScaledTensorView& a,
                    const ScaledTensorView& b);

}  // namespace octofold::ops
