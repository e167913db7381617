// The products by warps run on the host, with the parameters that src/cuda makes.
#pragma once

#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cuda/params.h"
#include "kernels/mma/kernel.h"
#include "support/test.h"

namespace octofold::test {

// By so many blocks.
template <config::MmaGemmConfig kConfig>
void run_mma_gemm(const core::Product& product, std::int64_t blocks) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const config::GemmParams params = cuda::gemm_params(product, false);
  ptx::shared.fill(0xFF);
  launch(blocks, kConfig.threads(), [&] { mma_gemm_kernel<kConfig>(params); });
  EXPECT_TRUE(ptx::shared.is_filled_behind(kConfig.shared_bytes(), 0xFF));
}

}  // namespace octofold::test
