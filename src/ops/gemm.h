// What gemm() takes, apart from its tensors.
#pragma once

#include <string_view>

#include "octofold/gemm_form.h"

namespace octofold::ops {

/// Throws Error(kInvalidArgument), in the name of `operation`, for a form that gemm() has not.
void require_form(std::string_view operation, const GemmForm& form);

}  // namespace octofold::ops
