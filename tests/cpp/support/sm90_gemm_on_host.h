// Hopper's GEMM kernel run on the host, with the parameters and tensor maps that src/cuda makes.
#pragma once

#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cuda/fake_runtime.h"
#include "cuda/params.h"
#include "kernels/sm90/kernel.h"
#include "support/test.h"

namespace octofold::test {

class HopperGemm : public cuda::FakeGpuTest {
 protected:
  // By so many clusters, or one for each of their tiles.
  template <config::Sm90GemmConfig kConfig>
  void run(const core::Product& product, std::int64_t clusters = 0) {
    static_assert(kConfig.invalid_reason() == nullptr);
    constexpr config::Sm90SmemLayout kLayout(kConfig);
    const config::Sm90GemmParams params = cuda::params_of(runtime().device(0), product, kConfig);
    if (clusters == 0) {
      clusters = config::ceil_divide(params.work.rows, kConfig.cluster_tile_rows()) *
                 config::ceil_divide(params.work.columns, kConfig.cluster_tile_columns());
    }
    ptx::shared.fill(0xFF);
    launch(
        clusters * kConfig.cluster_size(), kConfig.threads(), [&] { gemm_kernel<kConfig>(params); },
        kConfig.cluster_size());
    EXPECT_TRUE(ptx::shared.is_filled_behind(kLayout.total, 0xFF));
  }
};

}  // namespace octofold::test
