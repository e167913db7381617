// The reference of products of groups on the CPU: one product after another.
#pragma once

#include "octofold/grouped_gemm.h"

#include "core/groups.h"
#include "kernels/cast/config/cast.h"
#include "kernels/shared/work.h"

namespace octofold::cpu {

/// octofold::grouped_gemm(), masked_gemm() and grouped_gemm_k() on checked arguments.
void grouped_gemm(const core::GroupedProduct& grouped, config::Work work);

/// octofold::grouped_gated_gemm(); `grouped.product.out` are H's codes, `format` is of the cast.
void grouped_gated_gemm(const core::GroupedProduct& grouped, const MutableScaledTensorView& out,
                        Activation activation, const config::CastFormat& format);

}  // namespace octofold::cpu
