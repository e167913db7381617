// Products of groups on a GPU.
#pragma once

#include <string_view>

#include "octofold/grouped_gemm.h"

#include "core/groups.h"
#include "cuda/device.h"
#include "kernels/cast/config/cast.h"
#include "kernels/shared/work.h"

namespace octofold::cuda {

/// grouped_gemm(), masked_gemm() and grouped_gemm_k() on checked arguments: one kernel.
/// `candidate`, where it is not empty: the configuration of this name, planned at each call.
void grouped_gemm(Device& device, const core::GroupedProduct& grouped, config::Work work,
                  Stream stream, std::string_view candidate = {});

/// Of a gated product `grouped.product.out` are H's codes.
void grouped_gated_gemm(Device& device, const core::GroupedProduct& grouped,
                        const MutableScaledTensorView& out, Activation activation,
                        const config::CastFormat& format, Stream stream,
                        std::string_view candidate = {});

}  // namespace octofold::cuda
