#include "cuda/ready_kernels.h"

namespace octofold::cuda {

std::string_view ready_kernel_bytes() { return ""; }

}  // namespace octofold::cuda
