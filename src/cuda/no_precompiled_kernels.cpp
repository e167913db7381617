#include "cuda/precompiled_kernels.h"

namespace octofold::cuda {

std::string_view precompiled_kernel_bytes() { return ""; }

}  // namespace octofold::cuda
