#include "cuda/mma_product.h"

namespace octofold::cuda {

config::GemmParams params_of(const Device&, const core::Product& product,
                             const config::MmaGemmConfig&) {
  return gemm_params(product, false);
}

// Warps store without TMA, whatever it can address.
SlowPaths slow_paths(const config::MmaGemmConfig&) {
  return {.operands = "operands are copied in less than 16 bytes"};
}

}  // namespace octofold::cuda
