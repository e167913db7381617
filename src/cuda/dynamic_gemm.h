// The product with a cast on a GPU.
#pragma once

#include <string_view>

#include "octofold/dynamic_gemm.h"

#include "cuda/device.h"
#include "kernels/cast/config/cast.h"

namespace octofold::cuda {

/// octofold::dynamic_gemm() on checked matrices that lie on `device`, by one kernel; `format`: of
/// the cast. Throws Error(kUnsupported) for what no kernel takes.
void dynamic_gemm(Device& device, const DynamicGemmArguments& arguments,
                  const config::CastFormat& format, Stream stream);

/// The same by the candidate of this name (plan/gemm.h), planned at each call.
void dynamic_gemm(Device& device, const DynamicGemmArguments& arguments,
                  const config::CastFormat& format, Stream stream, std::string_view candidate);

}  // namespace octofold::cuda
