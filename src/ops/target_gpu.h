// GPUs that are planned for without one at hand.
#pragma once

#include <cstdint>
#include <string_view>

#include "octofold/gemm_form.h"

#include "plan/gpu.h"

namespace octofold::ops {

/// Throws Error in the name of `operation`: kUnsupported for an architecture without products,
/// kInvalidArgument for fewer than 2 multiprocessors.
plan::Gpu target_gpu(std::string_view operation, std::string_view architecture,
                     std::int32_t multiprocessors);

/// Throws Error(kInvalidArgument), in the name of `operation`, for a form that gemm() has not.
void require_form(std::string_view operation, const GemmForm& form);

}  // namespace octofold::ops
