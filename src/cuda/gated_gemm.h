// The gated product on a GPU.
#pragma once

#include <string_view>

#include "octofold/gated_gemm.h"
#include "octofold/gemm.h"

#include "cuda/device.h"
#include "kernels/cast/config/cast.h"
#include "kernels/sm90/config/gated_output.h"
#include "kernels/sm90/config/gemm_params.h"

namespace octofold::cuda {

/// octofold::gated_gemm() on checked matrices that lie on `device`, by one kernel; `format`: of the
/// cast. Throws Error(kUnsupported) for what no kernel takes.
void gated_gemm(Device& device, const GatedGemmArguments& arguments,
                const config::CastFormat& format, Stream stream);

/// The same by the candidate of this name (plan/gemm.h), planned at each call.
void gated_gemm(Device& device, const GatedGemmArguments& arguments,
                const config::CastFormat& format, Stream stream, std::string_view candidate);

/// What gated products have in common, of groups or not; `product.out` are H's codes.
void require_gated_kernel(std::string_view operation, const GemmArguments& product);
config::GatedOutput gated_output(Activation activation, const config::CastFormat& format);
config::OutputScaleParams output_scale_params(const MutableScaledTensorView& out);

}  // namespace octofold::cuda
